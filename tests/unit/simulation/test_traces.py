"""Reading recorded traces."""

from pathlib import Path

import pytest

from services.simulation.names import names_of
from services.simulation.traces import TraceError, TraceRequest, at_rate, read, span

TRACES = Path(__file__).parent / "traces"


def test_mooncake_names_full_blocks_only() -> None:
    rows = read(TRACES / "mooncake_conversation_300.jsonl.gz")
    assert len(rows) == 300
    assert rows[0] == TraceRequest(0.0, 6758, 500, tuple(range(13)))
    assert all(len(row.blocks) == row.prompt // 512 for row in rows)
    assert [row.at for row in rows] == sorted(row.at for row in rows)


def test_azure_names_no_blocks() -> None:
    rows = read(TRACES / "azure_conv_50.csv.gz", limit=2)
    assert rows == [TraceRequest(0.0, 374, 44), TraceRequest(pytest.approx(4.314579), 396, 109)]


def test_a_rate_stretches_time_and_nothing_else() -> None:
    rows = read(TRACES / "azure_conv_50.csv.gz")
    faster = at_rate(rows, 10.0)
    assert len(faster) / span(faster) == pytest.approx(10.0)
    ratios = {round(new.at / old.at, 9) for new, old in zip(faster[1:], rows[1:], strict=True)}
    assert len(ratios) == 1
    assert [row.prompt for row in faster] == [row.prompt for row in rows]


@pytest.mark.parametrize("content", ["", "{}\n", "no trace", '{"timestamp": "x", "input_length": 1}\n'])
@pytest.mark.parametrize("name", ["trace.jsonl", "trace.csv"])
def test_what_is_no_trace_is_told_and_not_shown(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(TraceError) as error:
        read(tmp_path / name)
    assert "x" not in str(error.value).split()


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read"):
        read(tmp_path / "trace.csv")


def test_names_are_equal_where_prompts_are() -> None:
    one, other = TraceRequest(0.0, 1100, 1, (5, 6)), TraceRequest(0.0, 1100, 1, (5, 7))
    assert names_of(one, 0, 512) == (5, 6)
    small, small_other = names_of(one, 0, 16), names_of(other, 1, 16)
    assert len(set(small)) == len(small) == 64
    assert small[:32] == small_other[:32] and not set(small[32:]) & set(small_other[32:])
    unnamed = TraceRequest(0.0, 1100, 1)
    assert len(names_of(unnamed, 0, 16)) == 68
    assert not set(names_of(unnamed, 0, 16)) & set(names_of(unnamed, 1, 16))
