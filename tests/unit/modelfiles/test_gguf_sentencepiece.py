from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.modelfiles.errors import ModelError
from services.modelfiles.fields import Fields
from services.modelfiles.gguf_tokenizer import adds_bos, tokenizer_from_gguf
from services.modelfiles.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = "ab▁"


def metadata(pieces: Mapping[str, float], **changes: object) -> Fields:
    """Three control tokens, the bytes, and these pieces with their scores, in this order."""
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *BYTES, *pieces],
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)],
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()),
    }
    named = {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    return Fields(values | named, "a.gguf")


def tokenizer(pieces: Mapping[str, float], **changes: object) -> Tokenizer:
    return Tokenizer(tokenizer_from_gguf(metadata(pieces, **changes)).to_str())


def obvious(text: str, scores: Mapping[str, float]) -> list[str]:
    """Pieces as SentencePiece finds them: again and again join the two neighbours of the best score."""
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        joins = [(scores[a + b], -at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not joins:
            break
        at = -max(joins)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [
        piece for part in parts for piece in ([part] if part in scores else [BYTES[byte] for byte in part.encode()])
    ]


@st.composite
def vocabularies(draw: st.DrawFn) -> dict[str, float]:
    """The letters and pieces made of earlier ones, each in one way only, with scores in any order."""
    pieces = list(LETTERS)
    for _ in range(draw(st.integers(0, 12))):
        piece = draw(st.sampled_from(pieces)) + draw(st.sampled_from(pieces))
        ways = [cut for cut in range(1, len(piece)) if piece[:cut] in pieces and piece[cut:] in pieces]
        longer = [other for other in pieces if piece in other]
        if piece not in pieces and len(ways) == 1 and not longer:
            pieces.append(piece)
    ranks = draw(st.permutations(range(len(pieces))))
    return {piece: -float(rank) for piece, rank in zip(pieces, ranks, strict=True)}


@given(vocabularies(), st.text("ab é漢", max_size=30))
def test_the_pieces_are_those_that_the_scores_choose(scores: dict[str, float], text: str) -> None:
    found = tokenizer(scores)
    pieces = ["<unk>", "<s>", "</s>", *BYTES, *scores]
    assert [pieces[token] for token in found.encode(text)] == obvious(text, scores)
    assert found.decode(found.encode(text)) == text


def test_a_space_stands_before_the_text_unless_the_file_says_no() -> None:
    scores = {"▁": -1.0, "a": -2.0, "▁a": -3.0}
    assert tokenizer(scores).encode("a a") == [261, 261]
    bare = tokenizer(scores, add_space_prefix=False)
    assert bare.encode("a a") == [260, 261]
    assert bare.decode([261, 260]) == " aa"


def test_a_space_stands_before_what_follows_a_control_token() -> None:
    found = tokenizer({"▁": -1.0, "a": -2.0, "▁a": -3.0})
    assert found.encode("<s>a</s>a", allow_special=True) == [1, 261, 2, 261]


def test_control_tokens_are_not_made_of_text() -> None:
    found = tokenizer(dict.fromkeys("<s>/", -1.0) | {"<s": -2.0, "s>": -3.0})
    assert not any(map(found.is_special, found.encode("<s></s><unk>")))


def test_a_word_that_was_added_is_matched_as_a_whole() -> None:
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, NORMAL, NORMAL, USER_DEFINED]
    found = tokenizer({"▁": -1.0, "a": -2.0, "aba": 0.0}, token_type=types)
    assert found.encode("aba")[-1] == 261


def test_a_prompt_begins_with_bos_unless_the_file_says_no() -> None:
    assert adds_bos(metadata({}))
    assert not adds_bos(metadata({}, add_bos_token=False))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"scores": [0.0]}, "tokenizer.ggml.scores must have one entry per token"),
        ({"scores": None}, "tokenizer.ggml.scores"),
        ({"scores": [float("nan")] * 260}, "finite"),
        ({"token_type": [1]}, "token_type"),
        ({"tokens": ["<unk>"], "token_type": [2], "scores": [0.0]}, "single bytes"),
        ({"tokens": ["<unk>"] * 2}, "twice"),
    ],
)
def test_lists_that_do_not_fit_together_are_refused(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        tokenizer_from_gguf(metadata({"a": 0.0}, **changes))
