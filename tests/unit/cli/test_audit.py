"""What `diptych audit` shows: one readable line for each stranded thing, or that there is none."""

import io
import json

from rich.console import Console

from services.cli.audit import Finding, as_json, show
from services.core.audit import Held, Snapshot, Stranded

PINS = Held("pins", "r1", 256, age=12.34, count=3, state="joined", owner="decode-0/d1", last_heard=7.5)
SPAN = Held("span", age=9.0, state="kv.get")
LOOK = (
    Snapshot("kvstore", "kvstore-0", 0.0, 0.1, "k1", (PINS,), blocks_used=3),
    Snapshot("decode", "decode-0", 0.0, 2.0, is_silent=True),
)
FOUND = (
    Stranded("kvstore", "kvstore-0", "k1", PINS, "no worker has a publication or a fetch for it"),
    Stranded("prefill", "prefill-0", "p1", SPAN, "its process holds nothing for any request"),
)


def shown(finding: Finding) -> list[str]:
    out = io.StringIO()
    show(finding, Console(file=out, width=200))
    return out.getvalue().splitlines()


def test_a_stranded_thing_is_shown_with_its_age_its_last_owner_and_why() -> None:
    heading, pins, span, *_ = shown(Finding(LOOK, FOUND))
    assert heading.split() == ["process", "holds", "for", "age", "owner", "last", "heard", "stranded,", "because"]
    assert pins.split("  ")[0] == "kvstore-0"
    for part in ("3 pins (joined)", "r1/256", "12.3 s", "decode-0/d1", "7.5 s ago", "no worker has a publication"):
        assert part in pins
    assert "1 span (kv.get)" in span and "its process holds nothing" in span


def test_a_clean_cluster_is_said_to_be_clean_in_one_line() -> None:
    assert shown(Finding(LOOK[:1], ())) == ["nothing is stranded; 1 process holds 1 thing"]
    assert shown(Finding((), ())) == ["nothing is stranded; 0 processes hold 0 things"]


def test_a_process_that_does_not_answer_is_named() -> None:
    assert shown(Finding(LOOK, ()))[-1] == "no answer from decode-0: what it holds was not compared"


def test_what_a_process_says_of_itself_cannot_steer_the_terminal() -> None:
    nasty = Stranded("decode", "decode-0\x1b[2J", "d", Held("work", "\x1b]0;title\x07", state="[red]"), "why")
    text = "\n".join(shown(Finding((), (nasty,))))
    assert "\x1b" not in text and "\x07" not in text and "[red]" in text


def test_json_has_all_that_is_known_of_each() -> None:
    value = json.loads(json.dumps(as_json(Finding(LOOK, FOUND))))
    assert (value["asked"], value["silent"], value["held"]) == (2, ["decode-0"], 1)
    assert value["stranded"][0] == {
        "service": "kvstore",
        "name": "kvstore-0",
        "incarnation": "k1",
        "kind": "pins",
        "request_id": "r1",
        "attempt": 256,
        "count": 3,
        "state": "joined",
        "age_seconds": 12.34,
        "owner": "decode-0/d1",
        "last_heard_seconds": 7.5,
        "why": "no worker has a publication or a fetch for it",
    }
