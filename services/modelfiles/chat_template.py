"""A model's chat template, compiled: a conversation in, the text of the prompt out.

Must not know tokens; `chat_encoding.py` makes ids of the text.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import jinja2

from services.core.errors import InvalidRequest
from services.modelfiles.errors import ModelError
from services.modelfiles.template_sandbox import TemplateRaised, template_environment
from services.modelfiles.vocabulary import Vocabulary

Message = Mapping[str, object]
"""`role`, `content`, and what else the template knows."""

_MOST_CHARACTERS = 16_000_000
_MOST_SECONDS = 5.0
_LONGEST_REASON = 200

_RENDERING_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


class ChatTemplate:
    """A compiled template. Rendering is bounded in characters, and in time between two pieces of output."""

    def __init__(
        self,
        source: str,
        vocabulary: Vocabulary,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`now` dates the prompt where a template asks. Raises `ModelError` if the source is not a template."""
        try:
            self._template = template_environment(now).from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelError("the chat template is not valid jinja2") from error
        self._pieces = dict(vocabulary.pieces)
        self._clock = clock
        self.bos_id = vocabulary.bos_id

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt as text. Raises `InvalidRequest` with the template's own words if it refuses the messages."""
        variables = {**self._pieces, "messages": messages, "tools": None, "documents": None}
        until = self._clock() + _MOST_SECONDS
        rendered: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(variables, add_generation_prompt=add_generation_prompt):
                rendered.append(piece)
                length += len(piece)
                if length > _MOST_CHARACTERS or self._clock() > until:
                    raise InvalidRequest("the conversation is too large for the chat template", field="messages")
        except TemplateRaised as refusal:
            raise InvalidRequest(f"the chat template says: {_shortened(refusal)}", field="messages") from refusal
        except _RENDERING_ERRORS as error:
            raise InvalidRequest("the chat template cannot render these messages", field="messages") from error
        except RecursionError as error:
            raise InvalidRequest("the messages are nested too deeply", field="messages") from error
        return "".join(rendered)


def _shortened(refusal: TemplateRaised) -> str:
    words = " ".join(str(refusal).split())
    return words if len(words) <= _LONGEST_REASON else words[:_LONGEST_REASON] + "…"
