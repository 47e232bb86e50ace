"""OpenAI's request bodies as an `Ask`. What we do not do is refused by name, unless it asks for nothing.

Field names are OpenAI's; `top_k`, `min_p`, `repetition_penalty`, `min_tokens`, `ignore_eos`, `stop_token_ids`,
`priority` and `cache_salt` are taken beside them under the names that other servers gave them.
"""

from dataclasses import dataclass, replace

from services.core.errors import InvalidRequest
from services.gateway.ask import Ask, ChatMessage, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from services.gateway.json_fields import Fields, Json, listed, mapping, whole
from services.gateway.validation import Limits

COMPLETION_MAX_TOKENS = 16
"""What OpenAI's completions take when `max_tokens` is absent; chat takes what the context has room for."""

COMPLETION_LOGPROBS = 5
"""The most that OpenAI's completions report beside the drawn token; chat reports up to `Ask.max_logprobs`."""

_ASKS_FOR_NOTHING: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "prompt_logprobs": (0,),
    "length_penalty": (1, 1.0),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "echo": (False,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
"""Fields that are not supported, with the values besides null that make no difference."""


@dataclass(frozen=True, slots=True)
class Form:
    """How the answer is to be sent."""

    is_stream: bool = False
    with_usage: bool = False
    """A stream gets one more chunk, with the usage."""


def form_of(body: Json) -> Form:
    """Raises InvalidRequest."""
    fields = Fields(body)
    return Form(fields.flag("stream"), fields.nested("stream_options").flag("include_usage"))


def chat_ask(body: Json, limits: Limits) -> Ask:
    """A body of /v1/chat/completions. Raises InvalidRequest."""
    fields = Fields(body)
    entries = listed(fields.get("messages"), "messages")
    # Counted before any is read, so that a body of many small wrong entries costs nothing.
    if len(entries) > limits.messages:
        raise InvalidRequest(f"messages may have at most {limits.messages} entries", field="messages")
    ask = _ask(fields, ChatPrompt(tuple(_message(entry) for entry in entries)), None)
    logprobs = _chat_logprobs(fields)
    return ask if logprobs is None else replace(ask, logprobs=logprobs, logprobs_field="top_logprobs")


def completion_ask(body: Json) -> Ask:
    """A body of /v1/completions. Raises InvalidRequest."""
    fields = Fields(body)
    ask = _ask(fields, _prompt(fields.get("prompt")), COMPLETION_MAX_TOKENS)
    logprobs = fields.count("logprobs")
    return ask if logprobs is None else replace(ask, logprobs=logprobs, max_logprobs=COMPLETION_LOGPROBS)


def _ask(fields: Fields, prompt: Prompt, max_tokens: int | None) -> Ask:
    _refuse_unsupported(fields)
    name = "max_completion_tokens" if fields.has("max_completion_tokens") else "max_tokens"
    asked_tokens = fields.count(name)
    top_k = fields.count("top_k") or 0
    answers, priority = fields.count("n"), fields.count("priority")
    return Ask(
        prompt=prompt,
        model=fields.text("model", ""),
        temperature=fields.number("temperature", 1.0),
        top_k=0 if top_k == -1 else top_k,  # -1 is how vLLM's clients say "all"
        top_p=fields.number("top_p", 1.0),
        min_p=fields.number("min_p", 0.0),
        seed=fields.count("seed"),
        repetition_penalty=fields.number("repetition_penalty", 1.0),
        presence_penalty=fields.number("presence_penalty", 0.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0),
        logit_bias=fields.numbers_by_id("logit_bias"),
        n=1 if answers is None else answers,
        max_tokens=max_tokens if asked_tokens is None else asked_tokens,
        max_tokens_field=name,
        min_tokens=fields.count("min_tokens") or 0,
        stop=fields.texts("stop"),
        stop_token_ids=fields.ids("stop_token_ids"),
        ignore_eos=fields.flag("ignore_eos"),
        user=fields.text("user", ""),
        service_tier=fields.text("service_tier", ""),
        cache_salt=fields.text("cache_salt", ""),
        priority=0 if priority is None else priority,
    )


def _chat_logprobs(fields: Fields) -> int | None:
    most = fields.count("top_logprobs")
    if fields.flag("logprobs"):
        return most or 0
    if most:
        raise InvalidRequest("top_logprobs needs logprobs to be true", field="top_logprobs")
    return None


def _refuse_unsupported(fields: Fields) -> None:
    for name, harmless in _ASKS_FOR_NOTHING.items():
        value = fields.get(name)
        # Compared with types: False and 0 are equal, and one of them may be of the wrong type.
        if value is not None and not any(type(value) is type(one) and value == one for one in harmless):
            raise InvalidRequest(f"{name} is not supported here", field=name)


def _message(entry: object) -> ChatMessage:
    fields = Fields(mapping(entry, "messages"))
    if fields.has("tool_calls") or fields.has("function_call"):
        raise InvalidRequest("tool calls in messages are not supported here", field="messages")
    role, content = fields.get("role"), fields.get("content")
    if not isinstance(role, str):
        raise InvalidRequest("every message needs a role", field="messages")
    if not isinstance(content, str):
        content = "\n".join(_part(part) for part in listed(content, "the content of a message"))
    # The name that newer clients give the system's turn; templates know the old one.
    return ChatMessage("system" if role == "developer" else role, content)


def _part(part: object) -> str:
    fields = Fields(mapping(part, "a content part"))
    text = fields.get("text")
    if fields.get("type") != "text" or not isinstance(text, str):
        raise InvalidRequest("only text parts are supported in a message", field="messages")
    return text


def _prompt(value: object) -> Prompt:
    """A string, token ids, or a list with exactly one of either."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return TextPrompt(value)
    entries = listed(value, "prompt")
    if any(isinstance(entry, str | list) for entry in entries):
        raise InvalidRequest("several prompts in one request are not supported here", field="prompt")
    return TokenPrompt(tuple(whole(entry, "prompt") for entry in entries))
