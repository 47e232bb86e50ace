"""Log probabilities as OpenAI's clients expect them."""

import json
import math
from dataclasses import replace

from services.core.plan import TokenLogprobs
from services.gateway.openai_logprobs import LogprobShapes
from services.gateway.transcript import ShownToken
from tests.support.byte_model import END, byte_model

SHAPES = LogprobShapes(replace(byte_model(), controls={END: "<|end|>"}))
A, HALF = ord("a"), 0xC3


def test_a_chats_tokens_have_text_bytes_and_alternatives() -> None:
    shown = [ShownToken(A, 0, TokenLogprobs(-0.5, ((A, -0.5), (END, -1.5)))), ShownToken(HALF, 1, TokenLogprobs(-2.0))]
    assert SHAPES.chat(shown) == {
        "content": [
            {
                "token": "a",
                "logprob": -0.5,
                "bytes": [A],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.5, "bytes": [A]},
                    {"token": "<|end|>", "logprob": -1.5, "bytes": None},
                ],
            },
            {"token": "\\xc3", "logprob": -2.0, "bytes": [HALF], "top_logprobs": []},
        ],
        "refusal": None,
    }


def test_a_completions_tokens_are_columns_with_the_drawn_one_among_the_likeliest() -> None:
    shown = [
        ShownToken(A, 4, TokenLogprobs(-3.0, ((ord("b"), -0.1), (HALF, -0.2)))),
        ShownToken(HALF, 5, TokenLogprobs(-0.2, ((HALF, -0.2),))),
    ]
    assert SHAPES.completion(shown) == {
        "tokens": ["a", "bytes:\\xc3"],
        "token_logprobs": [-3.0, -0.2],
        "top_logprobs": [{"b": -0.1, "bytes:\\xc3": -0.2, "a": -3.0}, {"bytes:\\xc3": -0.2}],
        "text_offset": [4, 5],
    }


def test_the_likeliest_of_tokens_with_one_text_counts() -> None:
    shown = [ShownToken(A, 0, TokenLogprobs(-1.0, ((290, -0.1), (291, -0.2))))]
    assert SHAPES.completion(shown)["top_logprobs"] == [{"": -0.1, "a": -1.0}]


def test_what_is_impossible_is_still_a_number() -> None:
    body = SHAPES.chat([ShownToken(A, 0, TokenLogprobs(-math.inf))])
    assert json.loads(json.dumps(body, allow_nan=False))["content"][0]["logprob"] == -9999.0
