"""Bodies as OpenAI's clients and other servers' clients send them; what is not done here is refused by name."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import InvalidRequest
from services.gateway import validation
from services.gateway.ask import Ask, ChatMessage, ChatPrompt, TextPrompt, TokenPrompt
from services.gateway.json_fields import parsed
from services.gateway.openai_ask import chat_ask, completion_ask, form_of
from tests.support.byte_model import byte_model

LIMITS = validation.Limits()
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


def chat(**fields: object) -> Ask:
    return chat_ask({**HELLO, **fields}, LIMITS)


def test_a_plain_chat_takes_the_defaults() -> None:
    assert chat() == Ask(ChatPrompt((ChatMessage("user", "Hello"),)))


def test_every_field_arrives() -> None:
    ask = chat(
        model="m",
        temperature=0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        seed=-3,
        repetition_penalty=1.2,
        presence_penalty=-1,
        frequency_penalty=0.5,
        logit_bias={"7": -100, "3": 2.5},
        logprobs=True,
        top_logprobs=4,
        n=3,
        max_completion_tokens=9,
        min_tokens=2,
        stop="x",
        stop_token_ids=[5],
        ignore_eos=True,
        user="me",
        service_tier="flex",
        priority=-2,
    )
    assert (ask.user, ask.service_tier, ask.priority) == ("me", "flex", -2)
    assert (ask.model, ask.temperature, ask.top_p, ask.top_k, ask.min_p) == ("m", 0.0, 0.5, 4, 0.1)
    assert (ask.seed, ask.max_tokens, ask.max_tokens_field, ask.min_tokens) == (-3, 9, "max_completion_tokens", 2)
    assert (ask.stop, ask.stop_token_ids, ask.ignore_eos) == (("x",), (5,), True)
    assert (ask.repetition_penalty, ask.presence_penalty, ask.frequency_penalty) == (1.2, -1.0, 0.5)
    assert (ask.logit_bias, ask.logprobs, ask.n) == (((7, -100.0), (3, 2.5)), 4, 3)


def test_log_probabilities_are_asked_for_as_each_api_has_it() -> None:
    assert (chat(logprobs=True).logprobs, chat(logprobs=False, top_logprobs=0).logprobs) == (0, None)
    asks = [completion_ask({"prompt": "x", "logprobs": count}) for count in (None, 0, 5, 6)]
    assert [ask.logprobs for ask in asks] == [None, 0, 5, 6]
    for ask in asks[:3]:
        validation.check(ask, byte_model(), LIMITS)
    with pytest.raises(InvalidRequest, match="0 to 5") as caught:
        validation.check(asks[3], byte_model(), LIMITS)
    assert caught.value.field == "logprobs"
    with pytest.raises(InvalidRequest, match="0 to 20") as caught:
        validation.check(chat(logprobs=True, top_logprobs=21), byte_model(), LIMITS)
    assert caught.value.field == "top_logprobs"


def test_null_is_absent() -> None:
    names = ("temperature", "top_p", "seed", "max_tokens", "stop", "n", "tools", "logprobs", "stream", "stream_options")
    assert chat(**dict.fromkeys(names)) == chat()


def test_fields_that_ask_for_nothing_pass() -> None:
    harmless = {
        "n": 1,
        "logprobs": False,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "metadata": {"a": 1},
        "store": True,
        "parallel_tool_calls": True,
        "top_k": -1,
    }
    assert chat(**harmless) == chat()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", "2"),
        ("n", True),
        ("logprobs", 1),
        ("logprobs", 0),
        ("top_logprobs", 5),
        ("tools", [{"type": "function"}]),
        ("logit_bias", [5, 1]),
        ("logit_bias", {"five": 1}),
        ("logit_bias", {"-5": 1}),
        ("logit_bias", {"²": 1}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", {"5": "1"}),
        ("logit_bias", {"5": True}),
        ("presence_penalty", "0.1"),
        ("frequency_penalty", "nan"),
        ("repetition_penalty", [1]),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["audio"]),
        ("temperature", "nan"),
        ("temperature", True),
        ("temperature", [1]),
        ("seed", 1.5),
        ("seed", "1"),
        ("max_tokens", "5"),
        ("max_tokens", True),
        ("stop", 5),
        ("stop", [5]),
        ("stop_token_ids", ["5"]),
        ("stop_token_ids", 5),
        ("model", 5),
        ("ignore_eos", "yes"),
    ],
)
def test_what_is_not_done_or_of_the_wrong_type_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "Hello",
        {},
        [5],
        ["Hello"],
        [{"content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 5}],
        [{"role": 5, "content": "x"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "assistant", "content": "x", "tool_calls": [{}]}],
    ],
)
def test_messages_of_another_form_are_refused(messages: object) -> None:
    with pytest.raises(InvalidRequest):
        chat(messages=messages)


def test_content_parts_are_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    ask = chat(messages=[{"role": "developer", "content": parts}])
    assert ask.prompt == ChatPrompt((ChatMessage("system", "a\nb"),))


def test_a_body_of_many_wrong_entries_costs_nothing_and_echoes_nothing() -> None:
    began = time.process_time()
    with pytest.raises(InvalidRequest) as caught:
        chat(messages=[{"role": "secret"}] * 12_000)
    assert time.process_time() - began < 0.1
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hi", TextPrompt("Hi")),
        (["Hi"], TextPrompt("Hi")),
        ([1, 2], TokenPrompt((1, 2))),
        ([[1, 2]], TokenPrompt((1, 2))),
        ([], TokenPrompt(())),
        ([""], TextPrompt("")),
    ],
)
def test_a_completion_takes_a_string_or_ids_or_a_list_of_one(prompt: object, expected: object) -> None:
    assert completion_ask({"prompt": prompt}) == Ask(expected, max_tokens=16)  # type: ignore[arg-type]


@pytest.mark.parametrize("prompt", [None, 5, {}, ["a", "b"], [[1], [2]], [1, "a"], [1.5], [True], [None]])
def test_other_prompts_are_refused(prompt: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion_ask({"prompt": prompt})
    assert caught.value.field == "prompt"


@pytest.mark.parametrize("field", ["echo", "suffix", "best_of"])
def test_completion_fields_that_are_not_done_are_refused(field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        completion_ask({"prompt": "x", field: {"echo": True, "suffix": "y", "best_of": 3}[field]})


def test_the_form_of_the_answer_is_read() -> None:
    form = form_of({"stream": True, "stream_options": {"include_usage": True, "other": 1}})
    assert (form.is_stream, form.with_usage) == (True, True)
    with pytest.raises(InvalidRequest):
        form_of({"stream": "yes"})
    with pytest.raises(InvalidRequest):
        form_of({"stream_options": 5})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"a": "\xff"}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": -Infinity}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        "\ufeff{}".encode(),
    ],
)
def test_a_body_that_is_not_strict_json_is_refused_briefly(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(body)
    assert len(str(caught.value)) < 100


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SHAPED = ["messages", "prompt", "stop", "stop_token_ids", "logit_bias"]
PLAIN = ["model", "temperature", "top_k", "seed", "max_tokens", "n", "logprobs", "top_logprobs", "presence_penalty"]
names = st.sampled_from([*SHAPED, *PLAIN])


@given(st.dictionaries(names, json_values, max_size=6))
def test_any_json_is_accepted_or_refused_and_nothing_else(fields: dict[str, object]) -> None:
    body = {**HELLO, "prompt": "x", **fields}
    for read in (lambda: chat_ask(body, LIMITS), lambda: completion_ask(body)):
        try:
            validation.check(read(), byte_model(), LIMITS)
        except InvalidRequest as error:
            assert len(str(error)) < 200
        except validation.UnknownModel:
            pass
