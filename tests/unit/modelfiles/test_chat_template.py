from datetime import datetime

import pytest

from services.core.errors import InvalidRequest
from services.modelfiles.chat_template import ChatTemplate
from services.modelfiles.errors import ModelError
from services.modelfiles.vocabulary import Vocabulary

VOCABULARY = Vocabulary(frozenset(), pieces={"bos_token": "<s>"})
HELLO = [{"role": "user", "content": "hello"}]


def render(source: str, messages: object = HELLO) -> str:
    return ChatTemplate(source, VOCABULARY, now=lambda: datetime(2026, 1, 2)).render(messages)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>hello"),
        ("{% for m in messages %}{{ m['role'] }}{% break %}{% endfor %}", "user"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ strftime_now('%Y-%m-%d') }}", "2026-01-02"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", "2"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hello"),
        ("{% if tools %}tools{% endif %}{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{{ dict(a=1).a }}", "1"),
    ],
)
def test_a_template_has_what_transformers_gives_it(source: str, expected: str) -> None:
    assert render(source) == expected


def test_a_refusal_of_the_template_is_an_invalid_request_in_its_words() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.field == "messages"


def test_a_long_refusal_is_shortened() -> None:
    with pytest.raises(InvalidRequest) as caught:
        render("{{ raise_exception('a' * 100000) }}")
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].missing.more }}",
        "{{ messages[5].content }}",
        "{{ 1 // 0 }}",
    ],
)
def test_a_template_that_cannot_deal_with_the_messages_is_an_invalid_request(source: str) -> None:
    with pytest.raises(InvalidRequest):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ namespace(__class__=1) }}",
        "{{ 'a' * 10000000000 }}",
        "{{ [1] * 10000000000 }}",
        "{{ 9 ** 9999999999 }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{% include 'other' %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(InvalidRequest):
        render(source)


@pytest.mark.parametrize("name", ["raise_exception.__globals__", "dict.__base__", "messages.__class__"])
def test_internals_are_not_there(name: str) -> None:
    assert render("{{ " + name + " }}") == ""


def test_output_is_bounded() -> None:
    with pytest.raises(InvalidRequest, match="too large"):
        render("{% for i in range(90000) %}{{ 'a' * 1000 }}{% endfor %}")


def test_time_is_bounded() -> None:
    seconds = iter(range(1000))
    template = ChatTemplate("{% for i in range(100) %}{{ i }}{% endfor %}", VOCABULARY, clock=lambda: next(seconds))
    with pytest.raises(InvalidRequest, match="too large"):
        template.render(HELLO)


def test_a_template_that_is_not_jinja_is_refused_when_it_is_opened() -> None:
    with pytest.raises(ModelError, match="jinja2"):
        ChatTemplate("{% for %}", VOCABULARY)
