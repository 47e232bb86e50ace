"""A model file as people have it into a prepared directory, once, however many processes ask for it.

    <cache>/prepared/<name>-<key>/           complete, or not there
    <cache>/prepared/<name>-<key>.partial/   being written by the holder of the lock
    <cache>/prepared/<name>-<key>.lock       flock: the system frees it when its holder dies

The key stands for the source's path and content as far as that is cheap (sizes, times and the first bytes), so a
changed source is prepared anew beside the old one.
"""

import fcntl
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from services.modelfiles import hf_source
from services.modelfiles.errors import ModelError
from services.modelfiles.gguf_source import read_gguf
from services.modelfiles.manifest import (
    CHAT_TEMPLATE,
    FORMAT,
    TOKENIZER,
    WEIGHTS,
    Manifest,
    StoredFile,
    stored_file,
    write_manifest,
)
from services.modelfiles.prepared import PreparedModel
from services.modelfiles.safetensors_file import write_safetensors
from services.modelfiles.source import ModelSource
from services.modelfiles.tensors import checked_tensors
from services.modelfiles.tokenizer import Tokenizer

_HEAD_BYTES = 1 << 16
_HF_FILES = (
    hf_source.CONFIG,
    hf_source.GENERATION_CONFIG,
    hf_source.TOKENIZER,
    hf_source.TOKENIZER_CONFIG,
    hf_source.CHAT_TEMPLATE,
    hf_source.WEIGHTS_INDEX,
    "*.safetensors",
)

Progress = Callable[[str], None]


def prepare(source: Path, cache: Path, progress: Progress | None = None) -> Path:
    """The prepared directory of a GGUF file or a Hugging Face directory, made if it is not there yet.

    Blocks while another process prepares the same source. `progress` gets a line for people before each long step.
    Raises `ModelError` naming what is missing, damaged or not supported; nothing is left behind then.
    """
    source = source.expanduser().resolve()
    target = cache / "prepared" / f"{_name(source)}-{_key(source)}"
    if _is_prepared(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f"{target.name}.lock")):
        if not _is_prepared(target):
            _replace(target, source, progress or _silent)
    return target


def _silent(line: str) -> None:
    """Progress for nobody."""


def _is_prepared(directory: Path) -> bool:
    try:
        PreparedModel.open(directory)
    except ModelError:
        return False
    return True


def _replace(target: Path, source: Path, progress: Progress) -> None:
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        progress(f"reading {source.name}")
        model = hf_source.read_hf(source) if source.is_dir() else read_gguf(source)
        _write(partial, _name(source), model, progress)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(directory: Path, name: str, model: ModelSource, progress: Progress) -> None:
    tensors = checked_tensors(model.config, model.tensors)
    Tokenizer(model.tokenizer_json)
    progress(f"writing {len(tensors)} tensors")
    digest = write_safetensors(directory / WEIGHTS, tensors)
    files = {WEIGHTS: StoredFile((directory / WEIGHTS).stat().st_size, digest)}
    texts = {TOKENIZER: model.tokenizer_json, CHAT_TEMPLATE: model.chat_template}
    for file_name, text in texts.items():
        if text is not None:
            (directory / file_name).write_text(text, encoding="utf-8")
            files[file_name] = stored_file(directory / file_name)
    # An id past the table can never be drawn, and would be out of bounds where stop ids are masked.
    stop_ids = frozenset(token for token in model.vocabulary.stop_ids if 0 <= token < model.config.vocab)
    vocabulary = replace(model.vocabulary, stop_ids=stop_ids)
    write_manifest(directory, Manifest(name, model.config, vocabulary, files))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _name(source: Path) -> str:
    stem = source.stem if source.suffix == ".gguf" else source.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem)


def _key(source: Path) -> str:
    if source.is_dir():
        files = sorted(path for pattern in _HF_FILES for path in source.glob(pattern))
    elif source.suffix == ".gguf" and source.is_file():
        files = [source]
    else:
        raise ModelError(f"{source.name} is neither a GGUF file nor a directory")
    key = hashlib.blake2b(f"{FORMAT}\0{source}".encode(), digest_size=8)
    for path in files:
        facts = path.stat()
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        key.update(f"\0{path.name}\0{facts.st_size}\0{facts.st_mtime_ns}\0{len(head)}\0".encode() + head)
    return key.hexdigest()
