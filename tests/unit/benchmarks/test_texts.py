"""Prompts of text."""

from random import Random

from peers.texts import text_prompts


class Letters:
    """A tokenizer with a token per character."""

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        assert not allow_special
        return list(text.encode())


def test_prompts_have_exactly_the_length_asked_for() -> None:
    assert [len(prompt) for prompt in text_prompts(Letters(), 5, 1500, Random(0))] == [1500] * 5


def test_no_two_prompts_begin_alike_and_the_same_seed_gives_the_same() -> None:
    prompts = text_prompts(Letters(), 16, 64, Random("W1 0"))
    assert len({tuple(prompt[:9]) for prompt in prompts}) == 16
    assert prompts == text_prompts(Letters(), 16, 64, Random("W1 0"))
