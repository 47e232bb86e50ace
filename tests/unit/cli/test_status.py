"""What `diptych status` shows of traffic classes."""

import json

from rich.console import Console

from services.cli.record import ServiceRecord
from services.cli.status import Report, as_json, table
from services.pb import operations_pb2

BATCH = operations_pb2.ClassLoad(name="batch", running=1, waiting=2, shed=30)
DEFAULT = operations_pb2.ClassLoad(name="default", running=4)


def scheduler(*classes: operations_pb2.ClassLoad) -> Report:
    said = operations_pb2.Announcement(is_ready=True, load=operations_pb2.Load(running=5, waiting=2, classes=classes))
    return Report(ServiceRecord("scheduler", "scheduler-0", "127.0.0.1:1", 1), said)


def lines(report: Report) -> list[list[str]]:
    console = Console(width=200, record=True)
    console.print(table([report]))
    return [line.split() for line in console.export_text().splitlines()[1:]]


def test_every_class_has_a_line_below_its_scheduler_with_what_was_shed() -> None:
    [_, *classes] = lines(scheduler(DEFAULT, BATCH))
    assert classes == [["default", "shed", "0", "4", "0"], ["batch", "shed", "30", "1", "2"]]


def test_a_single_class_that_shed_nothing_is_not_worth_a_line() -> None:
    assert len(lines(scheduler(DEFAULT))) == 1


def test_json_has_them_all() -> None:
    [row] = json.loads(json.dumps(as_json([scheduler(DEFAULT, BATCH)])))
    assert row["classes"][1] == {"name": "batch", "running": 1, "waiting": 2, "shed": 30}
