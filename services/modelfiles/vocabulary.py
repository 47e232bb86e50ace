"""Which ids begin and end things: the facts about a vocabulary that are not in tokenizer.json itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenizers import Tokenizer

END_OF_TURN_PIECES = (
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|EOT|>",
)
"""Control tokens that end a turn in the chat formats of this family, whether or not a file declares them as such."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What to put before a prompt, and where an answer ends."""

    stop_ids: frozenset[int]
    """The union of every declared end token and of the end-of-turn tokens the tokenizer has."""
    bos_id: int | None = None
    add_bos: bool = False
    """A plain prompt begins with `bos_id`. A chat template writes its own."""
    pieces: Mapping[str, str] = field(default_factory=dict)
    """Special tokens by role (`bos_token`, `eos_token`, ...): variables of a chat template."""


def end_of_turn_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of the well-known end-of-turn tokens that the tokenizer has as control tokens."""
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(index for index, token in added.items() if token.special and token.content in END_OF_TURN_PIECES)
