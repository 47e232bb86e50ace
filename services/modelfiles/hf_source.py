"""A Hugging Face directory into a `ModelSource`.

Where there is an index (`model.safetensors.index.json`) it is the allow-list: a tensor comes from the shard that the
index names and from no other, so a stray file or a second copy of a tensor changes nothing. Without an index the
weights are `model.safetensors`. Tokenizers must be in the form of tokenizer.json.
"""

from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

from services.modelfiles.errors import ModelError
from services.modelfiles.fields import Fields, read_json, read_json_if_present
from services.modelfiles.hf_config import config_from_hf
from services.modelfiles.safetensors_file import open_safetensors
from services.modelfiles.source import ModelSource
from services.modelfiles.stored_tensor import LazyTensor
from services.modelfiles.vocabulary import Vocabulary, end_of_turn_ids

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"

_PIECES = ("bos_token", "eos_token", "unk_token", "pad_token")
_END_IDS = "eos_token_id"


def read_hf(directory: Path) -> ModelSource:
    """Raises `ModelError` naming the file, field or tensor that is missing, damaged or not supported."""
    fields = read_json(directory / CONFIG)
    config = config_from_hf(fields)
    tokenizer = _tokenizer(directory / TOKENIZER)
    if tokenizer.get_vocab_size(with_added_tokens=True) > config.vocab:
        raise ModelError(f"{TOKENIZER} has more tokens than vocab_size in {CONFIG}")
    tokenizer_config = read_json_if_present(directory / TOKENIZER_CONFIG)
    generation = read_json_if_present(directory / GENERATION_CONFIG)
    return ModelSource(
        config=config,
        vocabulary=_vocabulary(tokenizer, tokenizer_config, fields.ids(_END_IDS) | generation.ids(_END_IDS)),
        tokenizer_json=tokenizer.to_str(),
        chat_template=_chat_template(directory, tokenizer_config),
        tensors=_tensors(directory),
    )


def _tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise ModelError(f"{path.name} is missing")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{path.name} cannot be read") from error


def _vocabulary(tokenizer: Tokenizer, tokenizer_config: Fields, declared: frozenset[int]) -> Vocabulary:
    pieces = {name: piece for name in _PIECES if (piece := _piece(tokenizer_config, name))}
    ids = {name: index for name, piece in pieces.items() if (index := tokenizer.token_to_id(piece)) is not None}
    bos = ids.get("bos_token")
    ends = {ids["eos_token"]} if "eos_token" in ids else set[int]()
    return Vocabulary(
        stop_ids=declared | ends | end_of_turn_ids(tokenizer),
        bos_id=bos,
        add_bos=bos is not None and tokenizer_config.flag("add_bos_token", _puts_first(tokenizer, bos)),
        pieces=pieces,
    )


def _piece(tokenizer_config: Fields, name: str) -> str:
    """A special token is written as its text, or as an object with the text as `content`."""
    value = tokenizer_config.get(name)
    if isinstance(value, Mapping):
        return tokenizer_config.fields(name).text("content")
    return tokenizer_config.text(name, "")


def _puts_first(tokenizer: Tokenizer, bos: int) -> bool:
    """Whether tokenizer.json itself (its post-processor) begins every text with `bos`."""
    return tokenizer.encode("a").ids[:1] == [bos]


def _chat_template(directory: Path, tokenizer_config: Fields) -> str | None:
    """A file of its own wins over the tokenizer's configuration; of several named templates, the one called default."""
    path = directory / CHAT_TEMPLATE
    if path.is_file():
        return path.read_text(encoding="utf-8")
    value = tokenizer_config.get("chat_template")
    if not isinstance(value, list):
        return tokenizer_config.text("chat_template", "") or None
    named = [Fields(item, tokenizer_config.origin) for item in value if isinstance(item, Mapping)]
    return next((item.text("template") for item in named if item.get("name") == "default"), None)


def _tensors(directory: Path) -> dict[str, LazyTensor]:
    if not (directory / WEIGHTS_INDEX).is_file():
        return dict(_open_shard(directory, WEIGHTS))
    shard_of = read_json(directory / WEIGHTS_INDEX).fields("weight_map")
    names = {name: shard_of.text(name) for name in shard_of.values}
    if not names:
        raise ModelError(f"{WEIGHTS_INDEX}: weight_map is empty")
    shards = {shard: _open_shard(directory, shard) for shard in sorted(set(names.values()))}
    absent = [name for name, shard in names.items() if name not in shards[shard]]
    if absent:
        raise ModelError(f"{names[absent[0]]} lacks {absent[0]}, which {WEIGHTS_INDEX} says it holds")
    return {name: shards[shard][name] for name, shard in names.items()}


def _open_shard(directory: Path, name: str) -> Mapping[str, LazyTensor]:
    if Path(name).name != name:
        raise ModelError(f"{WEIGHTS_INDEX} names a shard outside the directory")
    if not (directory / name).is_file():
        raise ModelError(f"{name} is missing")
    return open_safetensors(directory / name)
