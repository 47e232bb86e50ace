"""Prompts of a file, as the model reads them.

A file that ends in .jsonl has one JSON object a line: `text`, or `messages` for a conversation, and `kind`. Any other
file has one prompt a line. Empty lines count for nothing.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.core.errors import InvalidRequest
from services.modelfiles.chat_encoding import encode_chat
from services.modelfiles.prepared import PreparedModel

PLAIN = "plain"
"""The kind of a prompt that does not say its own."""

Encode = Callable[["Written"], list[int]]


class PromptError(Exception):
    """The prompt file cannot be used; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Written:
    """A prompt as it is in the file: a text, or the messages of a conversation."""

    kind: str
    text: str
    messages: tuple[Mapping[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the model reads it."""

    kind: str
    text: str
    """For people."""
    tokens: tuple[int, ...]
    """At least two, so that at least one is predicted."""


def read_prompts(path: Path) -> list[Written]:
    """Raises `PromptError` if the file cannot be read or a line is none of these."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise PromptError("the prompt file cannot be read") from None
    read = _from_json if path.suffix == ".jsonl" else _from_text
    written = [read(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not written:
        raise PromptError("the prompt file has no prompts")
    return written


def spread(written: Sequence[Written], limit: int) -> list[Written]:
    """At most `limit` of them, evenly from beginning to end, so that every kind has its share; 0 takes all."""
    count = min(limit, len(written)) if limit else len(written)
    return [written[at * len(written) // count] for at in range(count)]


def tokenized(written: Sequence[Written], encode: Encode, most: int) -> list[Prompt]:
    """Cut to `most` tokens. Raises `PromptError` for a prompt without a token to predict."""
    prompts = []
    for number, each in enumerate(written, start=1):
        try:
            tokens = tuple(encode(each)[:most])
        except InvalidRequest as error:
            raise PromptError(f"prompt {number}: {error}") from None
        if len(tokens) < 2:
            raise PromptError(f"prompt {number} has fewer than two tokens")
        prompts.append(Prompt(each.kind, each.text, tokens))
    return prompts


def encoder(prepared: PreparedModel) -> Encode:
    """As the gateway encodes; a model without a chat template reads a conversation as lines of `role: content`."""
    tokenizer, template = prepared.tokenizer(), prepared.chat_template()
    begin = [prepared.bos_id] if prepared.add_bos and prepared.bos_id is not None else []

    def encode(written: Written) -> list[int]:
        if written.messages and template is not None:
            return encode_chat(tokenizer, template, written.messages, add_generation_prompt=False)
        return begin + tokenizer.encode(written.text)

    return encode


def _from_text(number: int, line: str) -> Written:
    return Written(PLAIN, line)


def _from_json(number: int, line: str) -> Written:
    try:
        fields = json.loads(line)
    except ValueError:
        raise PromptError(f"line {number} of the prompt file is not JSON") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("kind", PLAIN), str):
        raise PromptError(f"line {number} of the prompt file is not an object with a text and a kind")
    kind = fields.get("kind", PLAIN)
    if _is_conversation(fields.get("messages")):
        messages = tuple(fields["messages"])
        return Written(kind, "\n".join(f"{each['role']}: {each['content']}" for each in messages), messages)
    if not isinstance(fields.get("text"), str):
        raise PromptError(f"line {number} of the prompt file has neither a text nor messages")
    return Written(kind, fields["text"])


def _is_conversation(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, dict) and {"role", "content"} <= each.keys() for each in value)
    )
