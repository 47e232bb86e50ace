"""The rules a request must meet, the same for both APIs. Pure; nothing here is done twice or elsewhere.

`check` comes before any costly work, `request` after tokenizing. Messages name the field and the rule, never the value.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from services.core.errors import ContextTooLong, InvalidRequest, UnknownModel
from services.core.ids import RequestKey
from services.core.request import Request, Sampling, Stopping
from services.gateway.ask import Ask, ChatPrompt, TextPrompt, TokenPrompt
from services.gateway.clients import Tiers
from services.gateway.served_model import ServedModel

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts and lengths, so that a small request cannot buy large work."""

    messages: int = 1024
    stops: int = 16
    stop_characters: int = 256
    stop_token_ids: int = 128
    logit_biases: int = 1024
    temperature: float = 100.0
    answers: int = 16
    priority: int = 8
    user_characters: int = 512
    tiers: Tiers = field(default_factory=Tiers)


@dataclass(frozen=True, slots=True)
class Terms:
    """What the gateway adds to a request that it accepts."""

    key: RequestKey
    seed: int
    """Used if the client names none."""
    deadline: float | None
    """On this process's monotonic clock."""
    client: str = ""
    traffic_class: str = ""


def check(ask: Ask, model: ServedModel, limits: Limits) -> None:
    """Everything that can be said before tokenizing. Raises InvalidRequest or UnknownModel."""
    if ask.model not in ("", model.name):
        raise UnknownModel("this model is not served here", field="model")
    _check_prompt(ask, model, limits)
    _count("n", ask.n, 1, limits.answers)
    _count("priority", ask.priority, -limits.priority, limits.priority)
    if len(ask.user) > limits.user_characters:
        raise InvalidRequest(f"user may have at most {limits.user_characters} characters", field="user")
    limits.tiers.check(ask.service_tier)
    if len(ask.cache_salt) > limits.user_characters:
        raise InvalidRequest(f"cache_salt may have at most {limits.user_characters} characters", field="cache_salt")
    _whole_characters(ask.cache_salt, "cache_salt")
    _check_sampling(ask, limits)
    _check_edits(ask, model, limits)
    _check_stopping(ask, model, limits)


def request(ask: Ask, prompt: Sequence[int], model: ServedModel, terms: Terms) -> Request:
    """The request as the services below see it. `max_tokens` beyond the context's room is cut down to it.

    Raises InvalidRequest for an empty prompt, ContextTooLong for one that leaves no room for a token.
    """
    if not prompt:
        raise InvalidRequest(f"{ask.prompt.field} must not be empty", field=ask.prompt.field)
    room = model.context - len(prompt)
    if room < 1:
        raise ContextTooLong(
            f"the prompt has {len(prompt)} tokens; this model's context of {model.context} has room for"
            f" {model.context - 1} and an answer",
            field=ask.prompt.field,
        )
    max_tokens = room if ask.max_tokens is None else min(ask.max_tokens, room)
    own_stops = frozenset() if ask.ignore_eos else model.stop_ids
    return Request(
        key=terms.key,
        prompt=tuple(prompt),
        salt=sha256(ask.cache_salt.encode()).digest() if ask.cache_salt else b"",
        sampling=Sampling(
            temperature=ask.temperature,
            top_k=ask.top_k,
            top_p=ask.top_p,
            min_p=ask.min_p,
            seed=terms.seed if ask.seed is None else ask.seed,
            repetition_penalty=ask.repetition_penalty,
            presence_penalty=ask.presence_penalty,
            frequency_penalty=ask.frequency_penalty,
            logit_bias=tuple(sorted(ask.logit_bias)),
            logprobs=ask.logprobs,
        ),
        stopping=Stopping(
            max_tokens=max_tokens,
            min_tokens=min(ask.min_tokens, max_tokens),
            stop_ids=own_stops | frozenset(ask.stop_token_ids),
        ),
        priority=ask.priority,
        client=terms.client,
        traffic_class=terms.traffic_class,
        deadline=terms.deadline,
    )


def _check_prompt(ask: Ask, model: ServedModel, limits: Limits) -> None:
    prompt = ask.prompt
    if model.cannot_fit(prompt):
        raise ContextTooLong(
            f"the prompt fills this model's context of {model.context} tokens; it has room for {model.context - 1}"
            " and an answer",
            field=prompt.field,
        )
    match prompt:
        case TextPrompt():
            is_empty = not prompt.text
            _whole_characters(prompt.text, prompt.field)
        case TokenPrompt():
            is_empty = not prompt.ids
            _known_ids(prompt.ids, prompt.field, model)
        case ChatPrompt():
            is_empty = not prompt.messages
            _check_messages(prompt, limits)
    if is_empty:
        raise InvalidRequest(f"{prompt.field} must not be empty", field=prompt.field)


def _check_messages(prompt: ChatPrompt, limits: Limits) -> None:
    if len(prompt.messages) > limits.messages:
        raise InvalidRequest(f"{prompt.field} may have at most {limits.messages} entries", field=prompt.field)
    for message in prompt.messages:
        if message.role not in ROLES:
            raise InvalidRequest("the role of a message must be system, user or assistant", field=prompt.field)
        _whole_characters(message.content, prompt.field)


def _check_sampling(ask: Ask, limits: Limits) -> None:
    _number("temperature", ask.temperature, 0.0, limits.temperature)
    _number("min_p", ask.min_p, 0.0, 1.0)
    _number("top_p", ask.top_p, 0.0, 1.0)
    if ask.top_p == 0.0:
        raise InvalidRequest("top_p must be above 0", field="top_p")
    _count("top_k", ask.top_k, 0, INT32_MAX)
    if ask.seed is not None:
        _count("seed", ask.seed, -INT64_MAX - 1, INT64_MAX)
    if ask.logprobs is not None:
        _count(ask.logprobs_field, ask.logprobs, 0, ask.max_logprobs)


def _check_edits(ask: Ask, model: ServedModel, limits: Limits) -> None:
    """What changes logits. The bounds also keep them finite."""
    _number("repetition_penalty", ask.repetition_penalty, 0.01, 100.0)
    _number("presence_penalty", ask.presence_penalty, -2.0, 2.0)
    _number("frequency_penalty", ask.frequency_penalty, -2.0, 2.0)
    if len(ask.logit_bias) > limits.logit_biases:
        raise InvalidRequest(f"logit_bias may have at most {limits.logit_biases} entries", field="logit_bias")
    _known_ids(tuple(token for token, _ in ask.logit_bias), "logit_bias", model)
    for _, bias in ask.logit_bias:
        _number("logit_bias", bias, -100.0, 100.0)


def _check_stopping(ask: Ask, model: ServedModel, limits: Limits) -> None:
    if ask.max_tokens is not None:
        _count(ask.max_tokens_field, ask.max_tokens, 1, INT32_MAX)
    _count("min_tokens", ask.min_tokens, 0, INT32_MAX if ask.max_tokens is None else ask.max_tokens)
    if len(ask.stop) > limits.stops:
        raise InvalidRequest(f"stop may have at most {limits.stops} strings", field="stop")
    for stop in ask.stop:
        if not 0 < len(stop) <= limits.stop_characters:
            raise InvalidRequest(f"a stop string must have 1 to {limits.stop_characters} characters", field="stop")
        _whole_characters(stop, "stop")
    if len(ask.stop_token_ids) > limits.stop_token_ids:
        raise InvalidRequest(f"stop_token_ids may have at most {limits.stop_token_ids} ids", field="stop_token_ids")
    _known_ids(ask.stop_token_ids, "stop_token_ids", model)


def _number(field: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidRequest(f"{field} must be a number from {low:g} to {high:g}", field=field)


def _count(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRequest(f"{field} must be a whole number from {low} to {high}", field=field)


def _known_ids(ids: tuple[int, ...], field: str, model: ServedModel) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < model.vocab):
        raise InvalidRequest(f"{field} has an id outside the vocabulary of {model.vocab}", field=field)


def _whole_characters(text: str, field: str) -> None:
    """A lone surrogate is no character: it can be neither encoded nor sent on."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field} has half of a surrogate pair, which is not a character", field=field) from None
