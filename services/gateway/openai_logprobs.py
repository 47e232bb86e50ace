"""Log probabilities in OpenAI's two forms. Only shapes; decides nothing.

Tokens that end the answer or lie in a stop string are no part of the text and are not reported.
"""

from collections.abc import Sequence
from typing import Any

from services.core.plan import TokenLogprobs
from services.gateway.served_model import ServedModel
from services.gateway.transcript import ShownToken

Json = dict[str, Any]

UNLIKELY = -9999.0
"""What OpenAI writes for a token that is next to impossible; JSON has no infinity."""


class LogprobShapes:
    """For answers of one model."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def chat(self, tokens: Sequence[ShownToken]) -> Json:
        """`choices[].logprobs` of a chat."""
        return {"content": [self._entry(shown) for shown in tokens], "refusal": None}

    def completion(self, tokens: Sequence[ShownToken]) -> Json:
        """`choices[].logprobs` of a completion; offsets are counted in the answer's text.

        The most likely tokens always have the drawn one beside them.
        """
        return {
            "tokens": [self._text(shown.token, "bytes:") for shown in tokens],
            "token_logprobs": [_bounded(shown.logprobs.logprob) for shown in tokens],
            "top_logprobs": [self._by_text(shown.token, shown.logprobs) for shown in tokens],
            "text_offset": [shown.offset for shown in tokens],
        }

    def _entry(self, shown: ShownToken) -> Json:
        top = [self._one(token, logprob) for token, logprob in shown.logprobs.top]
        return {**self._one(shown.token, shown.logprobs.logprob), "top_logprobs": top}

    def _one(self, token: int, logprob: float) -> Json:
        raw = self._model.token_bytes(token)
        return {"token": self._text(token, ""), "logprob": _bounded(logprob), "bytes": list(raw) or None}

    def _by_text(self, drawn: int, logprobs: TokenLogprobs) -> Json:
        """Of tokens with one text the likeliest counts, for it comes first."""
        found: Json = {}
        for token, logprob in (*logprobs.top, (drawn, logprobs.logprob)):
            found.setdefault(self._text(token, "bytes:"), _bounded(logprob))
        return found

    def _text(self, token: int, mark: str) -> str:
        """A control token's name; bytes that are only a part of a character in hexadecimal digits behind `mark`."""
        raw = self._model.token_bytes(token)
        if not raw:
            return self._model.controls.get(token, "")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return mark + "".join(f"\\x{byte:02x}" for byte in raw)


def _bounded(logprob: float) -> float:
    return max(logprob, UNLIKELY)
