"""A run of the benchmark as it might be found."""

from peers.limits import Machine
from peers.report import OURS, Findings
from peers.trace import Measures
from services.core.model_config import ModelConfig, RopeScaling

CONFIG = ModelConfig(
    architecture="llama",
    layers=2,
    hidden=64,
    intermediate=96,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=300,
    context=256,
    norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=RopeScaling(),
    tied_embeddings=True,
    attention_bias=False,
    qk_norm=False,
)
PROFILE = {"step_seconds": 0.05, "rows": 16, "linear": 0.7, "attention": 0.2, "bookkeeping": 0.1, "idle": 0.05}


def batch(rate: float, ttft: float) -> Measures:
    """Measures of W1."""
    return {"tokens_per_second": rate, "ttft": ttft, "itl_median": 0.05, "itl_p99": 0.09}


def stream(rate: float, ttft: float) -> Measures:
    """Measures of W2 or W3."""
    return {"tokens_per_second": rate, "ttft": ttft}


def findings() -> Findings:
    """Ours, a quick peer, a slow one, one of another quality that is quicker than all, one that runs only W1."""
    return Findings(
        config=CONFIG,
        runs={
            OURS: {
                "W1": [batch(110, 2.4), batch(130, 2.0), batch(120, 2.2)],
                "W2": [stream(100, 0.1)],
                "W3": [stream(400, 2.5)],
            },
            "quick": {"W1": [batch(100, 2.0)], "W2": [stream(50, 0.2)], "W3": [stream(200, 5.0)]},
            "slow": {"W1": [batch(60, 4.4)], "W2": [stream(10, 0.4)], "W3": [stream(500, 2.0)]},
            "coarse": {"W1": [batch(900, 0.1)], "W2": [stream(900, 0.1)], "W3": [stream(9000, 0.1)]},
            "alone": {"W1": [{"tokens_per_second": 10.0}]},
        },
        machine=[Machine(10e9, 100e9, 50e9)],
        kl={OURS: 1e-6, "quick": 0.003, "slow": 0.0, "coarse": 0.36, "alone": 0.0},
        settings={OURS: {"threads": 2}},
        ours={"profile": PROFILE, "bookkeeping_share": 0.1},
        weight_bytes=80_000_000,
        missing={"vLLM": "not installed"},
    )
