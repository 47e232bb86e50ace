"""Prompt files as the model reads them."""

import json
from pathlib import Path

import pytest

from services.engine.quality.prompts import PromptError, Written, encoder, read_prompts, spread, tokenized
from tests.unit.engine.quality.pairs import tiny


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_text_file_has_a_prompt_a_line(tmp_path: Path) -> None:
    found = read_prompts(written(tmp_path / "p.txt", "One.", "", '{"text": "code"}'))
    assert found == [Written("plain", "One."), Written("plain", '{"text": "code"}')]


def test_json_lines_have_kinds_and_conversations(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    lines = [{"text": "a b", "kind": "prose"}, {"text": "c d"}, {"messages": messages, "kind": "chat"}]
    found = read_prompts(written(tmp_path / "p.jsonl", *map(json.dumps, lines)))
    assert [(each.kind, each.text) for each in found] == [
        ("prose", "a b"),
        ("plain", "c d"),
        ("chat", "user: Hi\nassistant: Hello."),
    ]
    assert found[2].messages == tuple(messages)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 .* not JSON"),
        ("[1]", "line 2 .* not an object"),
        ('{"text": "a", "kind": 3}', "line 2 .* not an object"),
        ('{"text": 3}', "line 2 .* neither"),
        ('{"messages": []}', "line 2 .* neither"),
        ('{"messages": [{"role": "user"}]}', "line 2 .* neither"),
    ],
)
def test_a_bad_line_is_named(line: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=words):
        read_prompts(written(tmp_path / "p.jsonl", '{"text": "fine"}', line))


def test_a_file_without_prompts_and_none_at_all_are_errors(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no prompts"):
        read_prompts(written(tmp_path / "p.txt", "", " "))
    with pytest.raises(PromptError, match="cannot be read"):
        read_prompts(tmp_path / "absent.txt")


def test_a_limit_takes_prompts_from_the_whole_file() -> None:
    all_of_them = [Written("plain", str(number)) for number in range(10)]
    assert [each.text for each in spread(all_of_them, 4)] == ["0", "2", "5", "7"]
    assert spread(all_of_them, 0) == spread(all_of_them, 99) == all_of_them


def test_conversations_are_written_by_the_models_template(tmp_path: Path) -> None:
    encode = encoder(tiny(tmp_path))
    chat = encode(Written("chat", "user: Hi", ({"role": "user", "content": "Hi"},)))
    assert chat[0] == 1 and 2 in chat  # <|im_start|> and <|im_end|>
    assert 1 not in encode(Written("plain", "<|im_start|>user"))


def test_prompts_are_cut_and_a_prompt_of_one_token_is_refused() -> None:
    (cut,) = tokenized([Written("plain", "abc")], lambda each: [1, 2, 3], most=2)
    assert cut.tokens == (1, 2) and cut.text == "abc"
    with pytest.raises(PromptError, match="prompt 2 has fewer"):
        tokenized([Written("plain", "ab"), Written("plain", "a")], lambda each: [ord(c) for c in each.text], most=9)
