import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Fast
from transformers import TokenizersBackend

from services.core.errors import InvalidRequest
from services.modelfiles.errors import ModelError
from services.modelfiles.fields import Fields
from services.modelfiles.gguf_tokenizer import tokenizer_from_gguf
from services.modelfiles.tokenizer import Tokenizer
from tests.support.tiny_model import SPECIALS, tiny_tokenizer

PROBES = [
    "",
    "1234567",
    "3.14",
    "1,000,000.00 ½ ² ٣ ௧",
    "café naïve Ångström e\u0301",
    "👩‍👩‍👧‍👦 🇫🇷 👍🏽",
    "    four spaces",
    "trailing   ",
    "tabs\t\tand\n\nlines\r\nCRLF",
    "def f(x):\n    return x**2  # it's\n",
    "你好，世界。",
    "مرحبا ١٢٣",
    "It's we'll I'VE DON'T",
    "<|im_start|>user<|im_end|>",
    "$€ <= >= ^~| ``` {}[]()",
    "\u200b\ufeff\u00a0\x00",
]
TINY = Tokenizer(tiny_tokenizer(320).to_str())


def random_texts(count: int) -> list[str]:
    rng = random.Random(7)
    alphabet = "abcXYZ 0123456789 \n\t.,'\"<>|éßñ漢字かな한글😀\u0301٣½_-/\\"
    return ["".join(rng.choices(alphabet, k=rng.randrange(1, 40))) for _ in range(count)]


def byte_fallback_tokenizer() -> Fast:
    """As Llama 2's tokenizer.json: a mark for each space, and bytes for what is not in the vocabulary."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "▁h", "▁hi"]
    vocab = {piece: at for at, piece in enumerate(pieces)}
    merges = [("▁", "h"), ("▁h", "i")]
    tokenizer = Fast(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(content=" ", left=1, right=0)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in pieces[:3]])
    return tokenizer


FALLBACK = Tokenizer(byte_fallback_tokenizer().to_str())


def test_ids_equal_those_of_transformers_for_the_same_gguf_file(
    smollm2_tokenizer: Tokenizer, transformers_tokenizer: TokenizersBackend
) -> None:
    # transformers drops the tag, which shows where a digit other than 0 to 9 follows a space: put the split back.
    theirs = transformers_tokenizer
    split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    ours = smollm2_tokenizer
    for text in PROBES + random_texts(100):
        ids = ours.encode(text, allow_special=True)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text


@pytest.mark.parametrize("text", PROBES)
def test_real_text_survives_the_round_trip(smollm2_tokenizer: Tokenizer, text: str) -> None:
    assert smollm2_tokenizer.decode(smollm2_tokenizer.encode(text)) == text


@given(st.text())
def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(text: str) -> None:
    assert b"".join(map(TINY.token_bytes, TINY.encode(text))) == text.encode()


@given(st.lists(st.sampled_from([*SPECIALS, "<|", "im_end", "|>", "a"])).map("".join))
def test_text_that_looks_like_a_control_token_stays_text(text: str) -> None:
    ids = TINY.encode(text)
    assert not any(map(TINY.is_special, ids))
    assert TINY.decode(ids) == text


def test_trusted_text_has_its_control_tokens_recognized() -> None:
    assert TINY.encode("<|im_start|><|im_end|>", allow_special=True) == [1, 2]
    assert TINY.token_bytes(1) == b"" and TINY.is_special(1)


def test_ids_without_a_token_are_no_bytes() -> None:
    assert [TINY.token_bytes(token) for token in (-1, TINY.size, 10**9)] == [b""] * 3


def test_half_a_character_is_bytes() -> None:
    first, second = TINY.encode("é")
    assert TINY.token_bytes(first) + TINY.token_bytes(second) == "é".encode()
    assert TINY.decode([first]) == "\ufffd"


def test_an_added_token_outside_the_byte_alphabet_is_its_own_text() -> None:
    fast = tiny_tokenizer(320)
    fast.add_tokens([AddedToken("→ 漢", normalized=False)])
    tokenizer = Tokenizer(fast.to_str())
    ids = tokenizer.encode("a→ 漢b")
    assert tokenizer.decode(ids) == fast.decode(ids) == "a→ 漢b"


def test_text_with_a_lone_surrogate_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        TINY.encode("hi \ud800 there")


@given(st.text(st.characters(codec="utf-8", exclude_characters="▁"), min_size=1))
def test_byte_fallback_pieces_become_the_bytes_of_the_text(text: str) -> None:
    ids = FALLBACK.encode(text)
    assert b"".join(map(FALLBACK.token_bytes, ids)) == b" " + text.encode()
    assert FALLBACK.decode(ids) == text


def test_byte_fallback_decodes_as_the_library_does() -> None:
    fast = byte_fallback_tokenizer()
    tokenizer = Tokenizer(fast.to_str())
    ids = tokenizer.encode("hi hi é\n😀")
    assert tokenizer.decode(ids) == fast.decode(ids)


def test_a_tokenizer_of_another_form_is_refused() -> None:
    fast = tiny_tokenizer(320)
    fast.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="neither byte-level nor byte-fallback"):
        Tokenizer(fast.to_str())


def test_what_is_not_a_tokenizer_is_refused() -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer("{}")


def split_as(tag: str, text: str) -> list[str]:
    """The pieces between which nothing merges, for a tokenizer built from GGUF metadata with this tag."""
    vocab = json.loads(tiny_tokenizer(320).to_str())["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    values = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": tag,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": [],
    }
    tokenizer = tokenizer_from_gguf(Fields(values, "a.gguf"))
    assert tokenizer.pre_tokenizer is not None
    return [text[begin:end] for _, (begin, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("tag", "pieces"),
    [
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", "!", "\n\n  ", " x"]),
        ("gpt-2", ["It", "'s", " 1234", "!", "\n\n  ", " x"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", "!\n\n", "  ", " x"]),
        ("llama-bpe", ["It", "'s", " ", "123", "4", "!\n\n", "  ", " x"]),
        ("tekken", ["It", "'s", " ", "1", "2", "3", "4", "!\n\n", "  ", " x"]),
        ("default", ["It", "'", "s", " ", "123", "4", "!", "\n\n  ", " x"]),
    ],
)
def test_every_tag_splits_text_its_own_way(tag: str, pieces: list[str]) -> None:
    assert split_as(tag, "It's 1234!\n\n   x") == pieces


@pytest.mark.parametrize(
    ("tag", "pieces"), [("tekken", ["an", " HTTPServer", "Error"]), ("qwen2", ["an", " HTTPServerError"])]
)
def test_only_tekken_splits_where_the_case_changes(tag: str, pieces: list[str]) -> None:
    assert split_as(tag, "an HTTPServerError") == pieces


@given(st.text())
def test_the_smollm_split_is_that_of_its_tokenizer_file(text: str) -> None:
    theirs = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    assert split_as("smollm", text) == [text[begin:end] for _, (begin, end) in theirs.pre_tokenize_str(text)]


@given(st.text())
def test_the_gpt2_split_is_that_of_the_library(text: str) -> None:
    theirs = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert split_as("gpt-2", text) == [text[begin:end] for _, (begin, end) in theirs.pre_tokenize_str(text)]
