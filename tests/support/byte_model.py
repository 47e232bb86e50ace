"""A served model of bytes: every byte is a token, 256 ends an answer, ids up to 299 are rows without a token."""

from collections.abc import Sequence

from services.gateway.served_model import ServedModel

END = 256
VOCAB = 300


def byte_model(context: int = 64) -> ServedModel:
    """Its chat template is nothing but the contents, one after the other."""

    def encode_chat(turns: Sequence[dict[str, str]]) -> list[int]:
        return [token for turn in turns for token in turn["content"].encode()]

    return ServedModel(
        name="bytes",
        digest="d1",
        context=context,
        vocab=VOCAB,
        stop_ids=frozenset({END}),
        encode_text=lambda text: list(text.encode()),
        encode_chat=encode_chat,
        token_bytes=lambda token: bytes([token]) if token < END else b"",
    )
