"""What is accepted, what is refused, and that a refusal names the field and does not echo."""

import math
from dataclasses import replace

import pytest

from services.core.errors import ContextTooLong, InvalidRequest, UnknownModel
from services.core.ids import RequestId, RequestKey
from services.gateway import validation
from services.gateway.ask import Ask, ChatMessage, ChatPrompt, TextPrompt, TokenPrompt
from tests.support.byte_model import END, VOCAB, byte_model

CONTEXT = 64
MODEL = byte_model(CONTEXT)
LIMITS = validation.Limits(messages=3, stops=2, stop_characters=5, stop_token_ids=2, logit_biases=2, answers=4)
TERMS = validation.Terms(RequestKey(RequestId("r")), seed=7, deadline=None)
ASK = Ask(TextPrompt("Hello"))


def refusal(ask: Ask) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        validation.check(ask, MODEL, LIMITS)
        validation.request(ask, MODEL.tokenize(ask.prompt), MODEL, TERMS)
    assert len(str(caught.value)) < 200
    return caught.value


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.1, 1e9])
def test_a_number_out_of_range_is_refused_by_name(field: str, value: float) -> None:
    assert refusal(replace(ASK, **{field: value})).field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_p", 0.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.1),
        ("presence_penalty", math.nan),
        ("frequency_penalty", -2.1),
        ("logit_bias", ((1, 100.5),)),
        ("logit_bias", ((1, math.nan),)),
        ("logit_bias", ((VOCAB, 1.0),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((1, 1.0), (2, 1.0), (3, 1.0))),
        ("logprobs", -1),
        ("logprobs", 21),
        ("n", 0),
        ("n", -1),
        ("n", 5),
        ("top_k", -1),
        ("top_k", 2**31),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("seed", 10**400),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 2**40),
        ("min_tokens", -1),
        ("min_tokens", 2**31),
        ("stop", ("a", "")),
        ("stop", ("toolong",)),
        ("stop", ("a", "b", "c")),
        ("stop", ("\ud800",)),
        ("stop_token_ids", (VOCAB,)),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", (1, 2, 3)),
        ("priority", 9),
        ("priority", -9),
        ("user", "x" * 513),
        ("service_tier", "platinum"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    assert refusal(replace(ASK, **{field: value})).field == field


@pytest.mark.parametrize(
    "prompt",
    [
        TextPrompt(""),
        TextPrompt("hi \ud800 there"),
        TokenPrompt(()),
        TokenPrompt((-1,)),
        TokenPrompt((10**9,)),
        ChatPrompt((), "prompt"),
        ChatPrompt((ChatMessage("tool", "x"),), "prompt"),
        ChatPrompt((ChatMessage("user", "\udfff"),), "prompt"),
        ChatPrompt((ChatMessage("user", "x"),) * 4, "prompt"),
        ChatPrompt((ChatMessage("user", ""),), "prompt"),
    ],
)
def test_a_prompt_that_is_none_is_refused(prompt: TextPrompt | TokenPrompt | ChatPrompt) -> None:
    assert refusal(Ask(prompt)).field == "prompt"


def test_a_model_that_is_not_served_is_unknown() -> None:
    with pytest.raises(UnknownModel):
        validation.check(replace(ASK, model="other"), MODEL, LIMITS)


@pytest.mark.parametrize("model", ["", "bytes"])
def test_no_name_takes_the_only_model(model: str) -> None:
    validation.check(replace(ASK, model=model), MODEL, LIMITS)


@pytest.mark.parametrize("text", ["\0", "\ufeffx", "😀", "x"])
def test_odd_characters_are_characters(text: str) -> None:
    validation.check(Ask(TextPrompt(text)), MODEL, LIMITS)


def test_more_min_tokens_than_max_tokens_are_refused() -> None:
    assert refusal(replace(ASK, max_tokens=2, min_tokens=3)).field == "min_tokens"


@pytest.mark.parametrize("max_tokens", [None, 1, 10 * CONTEXT])
def test_a_prompt_one_short_of_the_context_gets_exactly_one_token(max_tokens: int | None) -> None:
    ask = Ask(TextPrompt("x" * (CONTEXT - 1)), max_tokens=max_tokens)
    validation.check(ask, MODEL, LIMITS)
    assert validation.request(ask, MODEL.tokenize(ask.prompt), MODEL, TERMS).stopping.max_tokens == 1


@pytest.mark.parametrize("over", [0, 1, 1000])
def test_a_prompt_that_fills_the_context_is_refused_with_true_counts(over: int) -> None:
    ask = Ask(TextPrompt("x" * (CONTEXT + over)), max_tokens=1)
    with pytest.raises(ContextTooLong, match=f"{CONTEXT + over} tokens.*{CONTEXT}.*{CONTEXT - 1}"):
        validation.request(ask, MODEL.tokenize(ask.prompt), MODEL, TERMS)


def test_max_tokens_beyond_the_room_are_cut_down_to_it_and_min_tokens_with_them() -> None:
    ask = replace(ASK, max_tokens=1000, min_tokens=500)
    stopping = validation.request(ask, MODEL.tokenize(ask.prompt), MODEL, TERMS).stopping
    assert (stopping.max_tokens, stopping.min_tokens) == (CONTEXT - 5, CONTEXT - 5)


def test_stop_ids_are_the_models_and_the_clients() -> None:
    def stop_ids(ask: Ask) -> frozenset[int]:
        return validation.request(ask, (1,), MODEL, TERMS).stopping.stop_ids

    assert stop_ids(replace(ASK, stop_token_ids=(3,))) == {END, 3}
    assert stop_ids(replace(ASK, stop_token_ids=(3,), ignore_eos=True)) == {3}


def test_every_setting_of_a_draw_goes_down_and_bias_in_the_order_of_ids() -> None:
    ask = replace(ASK, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.3, logprobs=2)
    ask = replace(ask, logit_bias=((9, 1.0), (3, -2.0)))
    validation.check(ask, MODEL, LIMITS)
    sampling = validation.request(ask, (1,), MODEL, TERMS).sampling
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.1, 0.2, 0.3)
    assert (sampling.logit_bias, sampling.logprobs) == (((3, -2.0), (9, 1.0)), 2)


@pytest.mark.parametrize(("asked", "taken"), [(None, 7), (0, 0), (-5, -5)])
def test_a_seed_is_drawn_only_if_none_is_named(asked: int | None, taken: int) -> None:
    assert validation.request(replace(ASK, seed=asked), (1,), MODEL, TERMS).sampling.seed == taken


def test_the_error_names_the_field_as_the_caller_spells_it() -> None:
    ask = replace(ASK, max_tokens=0, max_tokens_field="max_completion_tokens")
    assert refusal(ask).field == "max_completion_tokens"


@pytest.mark.parametrize(
    "prompt",
    [
        TextPrompt("x" * CONTEXT * 4),
        TokenPrompt((1,) * CONTEXT),
        ChatPrompt((ChatMessage("user", "x" * CONTEXT * 2), ChatMessage("user", "é" * CONTEXT))),
    ],
)
def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(
    prompt: TextPrompt | TokenPrompt | ChatPrompt,
) -> None:
    model = replace(MODEL, longest_token=4)
    with pytest.raises(ContextTooLong):
        validation.check(replace(ASK, prompt=prompt), model, LIMITS)
    shorter = TextPrompt("x" * (CONTEXT * 4 - 1))
    validation.check(replace(ASK, prompt=shorter), model, LIMITS)
