"""What the benchmark of transfers makes of its measurements."""

from dataclasses import replace

import pytest

from handover.gap import Gap
from handover.report import NAMES, GapRun, as_json, as_text
from handover.shapes import SHAPES

SECONDS = {
    "near_put": [0.03, 0.02, 0.01],
    "near_get": [0.02],
    "copies": [0.03],
    "far_put": [0.2],
    "far_get": [0.1],
    "tcp": [0.05],
    "grpc_bare": [0.08],
}
GAP = Gap(ttft=2.0, first=0.05, step=0.01, prefill=1.9, waiting={"kv.put": 0.03}, chunks=(400, 100))


def test_ratios_are_of_medians_and_the_worst_shape_counts() -> None:
    slower = {**SECONDS, "far_get": [0.2]}
    report = as_json(dict(zip(SHAPES, (SECONDS, slower), strict=True)), [])
    assert report["shm_over_memcpy"] == pytest.approx(0.03 / (0.02 + 0.02))
    assert report["grpc_over_tcp"] == pytest.approx(0.25)
    assert report["grpc_bare_over_tcp"] == pytest.approx(0.625)
    assert "handover_gap_over_ttft" not in report


def test_rates_and_costs_are_of_the_blocks_that_were_moved() -> None:
    shape = SHAPES[0]
    found = as_json({shape: SECONDS}, [])["blocks"][shape.name]
    assert found["gigabytes_per_second"]["near_get"] == pytest.approx(shape.bytes / 0.02 / 1e9)
    assert found["gigabytes_per_second"]["copies"] == pytest.approx(2 * shape.bytes / 0.03 / 1e9)
    assert found["microseconds_per_block"]["tcp"] == pytest.approx(0.05 / shape.blocks * 1e6)
    assert set(found["gigabytes_per_second"]) == set(NAMES)


def test_a_gap_is_compared_with_the_last_chunks_transfer_or_with_the_time_to_the_first_token() -> None:
    quick = replace(GAP, first=0.01)
    free = GapRun(1024, "near", 0.0, [GAP, quick, quick])
    narrow = GapRun(1024, "near", 2000.0, [GAP])
    report = as_json({}, [free, narrow])
    assert report["handover_gap_over_ttft"] == pytest.approx(0.0)
    assert report["handover_gap_over_last_chunk"] == pytest.approx(0.04 / (100 / 2000.0))


def test_what_is_added_is_never_less_than_nothing() -> None:
    assert replace(GAP, first=0.005).added == 0.0


def test_the_text_says_every_ratio_and_what_it_is_to_be() -> None:
    text = as_text(as_json({SHAPES[0]: SECONDS}, [GapRun(1024, "near", 2000.0, [GAP]), GapRun(64, "far", 0.0, [GAP])]))
    assert "shm_over_memcpy" in text and "to be >= 0.7" in text
    assert "handover_gap_over_last_chunk" in text and "to be <= 1.2" in text
    assert "a prompt of 1024 tokens, near, a link of 0 MB/s" in text
