"""From a prepared directory to answers."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from services.core.model_config import KVFormat, ModelConfig
from services.core.plan import StepPlan
from services.engine.batch import Batch
from services.engine.torch_load import TorchEngine, TorchSettings, load_torch
from services.modelfiles.prepare import prepare
from services.modelfiles.prepared import PreparedModel
from tests.support.tiny_model import write_tiny_hf_model
from tests.unit.engine.tiny_decoder import chunk, greedy

SETTINGS = TorchSettings(num_blocks=8, threads=1)
PROMPT = "Paged attention reads a context's blocks in any order; what a block holds is decided by its table. " * 3


def whole_prompt_logits(engine: TorchEngine, tokens: list[int]) -> torch.Tensor:
    """In two chunks over shuffled blocks, `[tokens, vocab]`."""
    blocks, middle = [5, 1, 7, 0, 2], len(tokens) // 2 + 1
    parts = [chunk(tokens[:middle], 0, blocks), chunk(tokens[middle:], middle, blocks)]
    with torch.inference_mode():
        batches = [Batch.of([part], engine.format.block_size, engine.cache.device) for part in parts]
        return torch.cat([engine.decoder.logits(engine.decoder.forward(batch, engine.cache)) for batch in batches])


def test_the_engine_says_with_whom_it_may_exchange_blocks(tmp_path: Path) -> None:
    prepared = PreparedModel.open(prepare(write_tiny_hf_model(tmp_path / "source"), tmp_path / "cache"))
    engine = load_torch(prepared, SETTINGS)
    assert engine.fingerprint == bytes.fromhex(prepared.digest)
    assert engine.format == engine.runner.kv.format == KVFormat("float32", 16, layers=2, kv_heads=2, head_dim=16)
    assert engine.runner.kv.num_blocks == 8


def test_the_real_model_computes_what_transformers_computes(smollm2: PreparedModel) -> None:
    engine = load_torch(smollm2, SETTINGS)
    tokens = smollm2.tokenizer().encode(PROMPT)[:64]
    assert len(tokens) > 48
    expected = reference_logits(smollm2, tokens)
    torch.testing.assert_close(whole_prompt_logits(engine, tokens), expected, rtol=0, atol=1e-3)

    last = chunk(tokens[-1:], len(tokens) - 1, [5, 1, 7, 0, 2], draw=greedy(len(tokens)))
    assert engine.runner.execute(StepPlan((last,))).drawn[last.key].token == int(expected[-1].argmax())


def reference_logits(prepared: PreparedModel, tokens: list[int]) -> torch.Tensor:
    state = {name: torch.from_numpy(array) for name, array in prepared.open_weights().items()}
    reference = LlamaForCausalLM.from_pretrained(
        None, config=transformers_config(prepared.config), state_dict=state, dtype=torch.float32
    )
    with torch.inference_mode():
        logits: torch.Tensor = reference(torch.tensor([tokens])).logits[0]
    return logits


def transformers_config(config: ModelConfig) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.context,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=config.tied_embeddings,
    )
