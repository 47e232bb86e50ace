"""A Llama of 36 million random weights in bfloat16: what a 16-bit checkpoint loses in int8 is measured on it.

    .venv/bin/python benchmarks/random_model.py /tmp/random-llama
    .venv/bin/diptych model check-quality /tmp/random-llama --prompts benchmarks/prompts/quality.jsonl

It predicts nothing. Weights keep rows at the size they have, so that logits have a deviation of `--spread`: with more
of it the distributions are sharper, and rounding shows more.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from services.modelfiles.manifest import CHAT_TEMPLATE, TOKENIZER
from services.modelfiles.prepare import prepare
from services.modelfiles.prepared import PreparedModel
from services.modelfiles.pull import pull


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes a Hugging Face directory with a random Llama.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spread", type=float, default=1.0, help="deviation of the logits (default 1)")
    asked = parser.parse_args()
    cache = Path(os.environ.get("DIPTYCH_CACHE") or "~/.cache/diptych").expanduser() / "models"
    tokens = PreparedModel.open(prepare(pull("smollm2", cache, _say), cache, _say))
    random_llama(tokens.config.vocab, asked.seed, asked.spread).save_pretrained(asked.directory)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tokens.directory / TOKENIZER), bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    tokenizer.chat_template = (tokens.directory / CHAT_TEMPLATE).read_text(encoding="utf-8")
    tokenizer.save_pretrained(asked.directory)
    return 0


def random_llama(vocab: int, seed: int, spread: float) -> LlamaForCausalLM:
    """The same numbers for the same seed."""
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=384,
        intermediate_size=1152,
        num_hidden_layers=10,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in model.parameters():
            drawn = torch.empty(weights.shape)
            if weights.dim() == 2:
                drawn.normal_(0, weights.shape[1] ** -0.5, generator=generator)
            else:
                drawn.uniform_(0.5, 1.5, generator=generator)
            weights.copy_(drawn)
        model.model.norm.weight *= spread
    return model


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
