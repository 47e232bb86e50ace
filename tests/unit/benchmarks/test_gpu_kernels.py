"""Everything of the GPU benchmark that can be checked without one."""

import json

import pytest
import torch

from gpu.contests import Contest, Sizes, contests
from gpu.report import Result, as_json, as_text
from gpu.work import Limits, Shape, Work, decode_attention, int8_linear, kv_write, per_row, prefill_attention
from gpu_kernels import main

TINY = Shape(heads=4, kv_heads=2, head_dim=16, hidden=32, intermediate=48)
SMALL = Sizes(decode=((1, 40), (3, 17)), prefill=((0, 20), (19, 5)), rows=(1, 5))


@pytest.fixture(scope="module")
def small_contests() -> list[Contest]:
    return list(contests(TINY, SMALL, torch.device("cpu")))


def test_both_sides_of_a_contest_compute_the_same(small_contests: list[Contest]) -> None:
    for contest in small_contests:
        theirs = contest.theirs().float()
        ours = contest.ours().float()
        # int8 KV loses up to half a scale of each value.
        off = 0.05 if "int8" in contest.name else 0.01
        assert theirs.abs().max() > 0
        assert (ours - theirs).abs().max() < off * theirs.abs().max(), contest.name


def test_a_contest_has_a_name_of_its_own_and_something_to_do(small_contests: list[Contest]) -> None:
    assert len({contest.name for contest in small_contests}) == len(small_contests) == 2 * 6 + 2 * 4
    assert all(contest.work.bytes > 0 for contest in small_contests)


def test_decode_attention_reads_each_context_once() -> None:
    kv = 2 * 2 * 16
    rows = 2 * 3 * 4 * 16 * 2
    assert decode_attention(TINY, [10, 20, 30], "float16") == Work(rows + 60 * kv * 2, 4 * 4 * 16 * 60)
    assert decode_attention(TINY, [10, 20, 30], "int8").bytes == rows + 60 * (kv + 2 * 2 * 4)


def test_prefill_attention_computes_what_causality_leaves() -> None:
    visible = sum(7 + at + 1 for at in range(5))
    assert prefill_attention(TINY, (7, 5), "float16").flops == 2 * 2 * TINY.heads * TINY.head_dim * visible


def test_one_row_of_decode_is_a_prefill_of_one() -> None:
    for kv_dtype in ("float16", "int8"):
        assert prefill_attention(TINY, (7, 1), kv_dtype) == decode_attention(TINY, [8], kv_dtype)


def test_bytes_of_the_other_kernels() -> None:
    assert int8_linear(3, 10, 20) == Work(20 * 10 + 4 * 20 + 2 * 3 * 30, 2 * 3 * 10 * 20)
    assert kv_write(TINY, 3, "float16").bytes == 3 * 2 * (2 * 16) * (2 + 2)
    assert per_row(3, 10, 5).bytes == 3 * 15 * 2


@pytest.mark.parametrize(("work", "limit"), [(Work(1000, 1), 10.0), (Work(1, 600), 20.0)])
def test_the_slower_of_moving_and_computing_is_the_limit(work: Work, limit: float) -> None:
    assert Limits(bandwidth=100.0, flops=30.0).seconds(work) == limit


def test_results_are_told_as_a_share_of_the_limit_and_against_the_peer() -> None:
    result = Result("decode", Work(bytes=10**9, flops=10**9), ours=2e-3, theirs=3e-3, peer="SDPA")
    limits = Limits(bandwidth=1e12, flops=1e15)
    kernel = json.loads(json.dumps(as_json("a GPU", limits, [result])))["kernels"]["decode"]
    assert kernel["share_of_limit"] == pytest.approx(0.5)
    assert kernel["speedup"] == pytest.approx(1.5)
    assert kernel["bytes_per_second"] == pytest.approx(5e11)
    assert " 50%" in as_text("a GPU", limits, [result]) and " 1.50  SDPA" in as_text("a GPU", limits, [result])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 2
    told = capsys.readouterr()
    assert "no CUDA device" in told.err and not told.out


@pytest.mark.parametrize("arguments", [["--repetitions", "0"], ["--repetitions", "x"], ["--shape", "70b"]])
def test_arguments_that_make_no_sense_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2 and arguments[0] in capsys.readouterr().err
