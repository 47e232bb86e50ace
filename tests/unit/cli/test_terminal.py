"""What is shown of texts that are not ours: answers of a model, logs of a dead process."""

import json
from io import StringIO
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from services.cli.child import TAIL_LINES, log_tail
from services.cli.terminal import printable, show_text


@given(st.text())
def test_a_model_cannot_steer_the_terminal(text: str) -> None:
    shown = printable(text)
    assert all(char in "\n\t" or (ord(char) >= 0x20 and not 0x7F <= ord(char) < 0xA0) for char in shown)
    assert shown == text or len(shown) < len(text)


def test_an_answer_is_shown_as_it_is_without_markup_and_wrapping() -> None:
    console = Console(file=StringIO(), width=20)
    show_text(console, "[bold]no markup[/bold], and a line longer than twenty")
    show_text(console, " columns\n")
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue() == "[bold]no markup[/bold], and a line longer than twenty columns\n"


def test_the_end_of_a_log_is_shown_for_people(tmp_path: Path) -> None:
    log = tmp_path / "decode-0.log"
    lines = [json.dumps({"level": "INFO", "message": f"line {number}"}) for number in range(100)]
    fault = json.dumps({"level": "ERROR", "message": "fault", "exception": "Traceback\n  ValueError: x"})
    log.write_text("\n".join([*lines, fault, "Killed", "[1, 2]"]) + "\n")
    shown = log_tail(log).splitlines()
    assert shown[-5:] == ["ERROR fault", "Traceback", "  ValueError: x", "Killed", "[1, 2]"]
    assert shown[0] == f"INFO line {100 - (TAIL_LINES - 3)}"


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert log_tail(tmp_path / "none.log") == ""
