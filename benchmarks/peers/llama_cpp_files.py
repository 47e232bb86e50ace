"""The default model's file in the other forms that llama.cpp is tried in, made by llama.cpp's own quantizer.

`python -m peers.llama_cpp_files SOURCE DIRECTORY` prints {form: path}. Both forms hold more bits than the source's
values have, so going through float32 costs them nothing that their own rounding does not. A file appears complete or
not at all.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import llama_cpp

FORMS = {"F16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16, "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}
HEAD_BYTES = 1 << 16


def converted(source: Path, directory: Path) -> dict[str, str]:
    """Form to file, made where it is not in `directory` yet. Raises RuntimeError if llama.cpp will not."""
    directory.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file:
        key = hashlib.blake2b(f"{source.stat().st_size}".encode() + file.read(HEAD_BYTES), digest_size=8).hexdigest()
    return {form: str(_form(source, directory / f"{source.stem}-{key}-{form}.gguf", form)) for form in FORMS}


def _form(source: Path, target: Path, form: str) -> Path:
    if target.is_file():
        return target
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FORMS[form]
    params.allow_requantize = True
    params.nthread = os.cpu_count() or 1
    partial = target.with_suffix(".partial")
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(partial), params):
        raise RuntimeError(f"llama.cpp could not write {form}")
    partial.rename(target)
    return target


if __name__ == "__main__":
    print(json.dumps(converted(Path(sys.argv[1]), Path(sys.argv[2]))))
