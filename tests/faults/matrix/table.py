"""The failure matrix as `docs/failures.md` has it: the document is what is tested. Pure but for reading that file."""

from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

DOCUMENT = Path(__file__).parents[3] / "docs" / "failures.md"

Outcome = Literal["whole", "resumed", "told", "gone", "broken"]


class Cell(NamedTuple):
    """What happens to a request that is struck by `fault` in `stage`."""

    stage: str
    fault: str
    outcome: Outcome
    is_quick: bool
    """One of those that `make test` tries."""

    @property
    def name(self) -> str:
        return f"{self.fault}, {self.stage}"


def cells(document: str | None = None) -> list[Cell]:
    """All cells of the table whose first column is `fault`. Raises ValueError for a word that is no outcome."""
    rows = [_row(line) for line in (document or DOCUMENT.read_text()).splitlines() if line.startswith("|")]
    begin = next(place for place, row in enumerate(rows) if row[0] == "fault")
    _, *stages = rows[begin]
    found = []
    for fault, *words in rows[begin + 2 :]:
        if fault == "outcome":
            break
        found += [_cell(stage, fault, word) for stage, word in zip(stages, words, strict=True)]
    return found


def _row(line: str) -> list[str]:
    return [word.strip() for word in line.strip().strip("|").split("|")]


def _cell(stage: str, fault: str, word: str) -> Cell:
    outcome = word.strip("*")
    if outcome not in get_args(Outcome):
        raise ValueError(f"the matrix has no outcome for {fault} while {stage}")
    return Cell(stage, fault, cast(Outcome, outcome), is_quick=word.startswith("**"))
