"""The model's GGUF file as a Hugging Face directory in float32, for peers that open nothing else.

`python -m peers.hugging_face_files SOURCE DIRECTORY`; the directory appears complete or not at all, and stays.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def convert(source: Path, directory: Path) -> None:
    """Nothing if it is there."""
    if directory.is_dir():
        return
    partial = directory.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    models: Any = AutoModelForCausalLM
    read = models.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = read.config
    # A model that remembers being quantized refuses to be saved; its weights are plain floats by now.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = models.from_config(config, dtype=torch.float32)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(partial)
    partial.rename(directory)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
