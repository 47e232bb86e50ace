"""The state file of the running cluster."""

from pathlib import Path

import pytest

from services.cli.errors import CommandError
from services.cli.record import RECORD, ClusterRecord, ServiceRecord, load, owned, save

RECORDED = ClusterRecord(
    pid=7,
    gateway_grpc="127.0.0.1:50051",
    gateway_http="127.0.0.1:8000",
    nats_url="nats://secret@127.0.0.1:4222",
    collector="127.0.0.1:4317",
    token="secret",
    services=(ServiceRecord("decode", "decode-0", "127.0.0.1:9", 8),),
)


def test_what_was_saved_is_loaded_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    with owned(tmp_path / "run"):
        save(RECORDED, tmp_path / "run")
        save(RECORDED, tmp_path / "run")
        assert load(tmp_path / "run") == RECORDED
        assert (tmp_path / "run" / RECORD).stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_nothing_is_loaded_when_no_cluster_has_ever_run(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no cluster is running"):
        load(tmp_path)


def test_a_record_whose_owner_is_gone_is_not_loaded_and_a_new_owner_removes_it(tmp_path: Path) -> None:
    with owned(tmp_path):
        pass
    save(RECORDED, tmp_path)
    with pytest.raises(CommandError, match="no cluster is running"):
        load(tmp_path)
    with owned(tmp_path), pytest.raises(CommandError, match="still starting"):
        load(tmp_path)


def test_a_second_cluster_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    with owned(tmp_path):
        save(RECORDED, tmp_path)
        with pytest.raises(CommandError, match="already running"), owned(tmp_path):
            pytest.fail("both own it")
        assert load(tmp_path) == RECORDED, "the refused one leaves the record alone"
    assert not (tmp_path / RECORD).exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": 1}', '{"services": [{"name": 1}]}'])
def test_a_damaged_record_is_a_sentence(tmp_path: Path, text: str) -> None:
    with owned(tmp_path):
        (tmp_path / RECORD).write_text(text)
        with pytest.raises(CommandError, match="damaged"):
            load(tmp_path)
