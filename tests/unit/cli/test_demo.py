"""The one JSON object of `diptych demo --json`."""

import json

from services.cli.client import Answer
from services.cli.demo import as_json
from services.pb import inference_pb2, traces_pb2


def test_the_json_object_has_the_promised_fields() -> None:
    done = inference_pb2.Done(
        finish_reason=inference_pb2.FINISH_REASON_STOP,
        usage=inference_pb2.Usage(prompt_tokens=31, completion_tokens=8, cached_tokens=16),
        ledger=[
            inference_pb2.Segment(name="gateway.tokenize", seconds=0.25),
            inference_pb2.Segment(name="decode.run", seconds=0.5),
        ],
        remainder_seconds=0.125,
        total_seconds=0.875,
        trace_id="ab" * 16,
    )
    trace = traces_pb2.Trace(
        spans=[
            traces_pb2.Span(name="gateway.request", service="gateway", span_id="1", parent_id="caller", seconds=0.875),
            traces_pb2.Span(name="kv.get", service="decode", span_id="2", parent_id="1", seconds=0.25),
        ]
    )
    shown = json.loads(json.dumps(as_json(Answer("Paris.", done, 0.3, 0.9), trace)))
    assert shown == {
        "text": "Paris.",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 31, "completion_tokens": 8, "cached_tokens": 16},
        "ledger": [{"segment": "gateway.tokenize", "seconds": 0.25}, {"segment": "decode.run", "seconds": 0.5}],
        "remainder_seconds": 0.125,
        "e2e_seconds": 0.9,
        "trace_id": "ab" * 16,
        "spans": [
            {"name": "gateway.request", "service": "gateway", "parent": None, "seconds": 0.875},
            {"name": "kv.get", "service": "decode", "parent": "gateway.request", "seconds": 0.25},
        ],
    }


def test_speed_counts_the_tokens_after_the_first() -> None:
    done = inference_pb2.Done(usage=inference_pb2.Usage(completion_tokens=11))
    assert Answer("", done, first_text_seconds=1.0, seconds=3.0).tokens_per_second == 5.0
    assert Answer("", inference_pb2.Done(), 1.0, 1.0).tokens_per_second == 0.0
