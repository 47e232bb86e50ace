"""One layer of the paged KV cache, in the order that `KVFormat` describes.

Owns how a token's vectors are written and how a request's blocks are read, in plain torch: the readable form of what
kernels do in place. Must not know which block is whose.
"""

from dataclasses import dataclass

import torch

LARGEST = 127
"""An int8 value lies between -127 and 127, so that its range has no sign of its own."""

SMALLEST_SCALE = 1e-9
"""Scale of a vector of zeros: anything but 0, so that quantizing never divides by it."""


@dataclass(frozen=True, slots=True)
class LayerKV:
    """Live views into the cache, float32 or float16, or int8 with scales."""

    k: torch.Tensor
    """`[num_blocks, kv_heads, head_dim, block_size]`."""
    v: torch.Tensor
    """`[num_blocks, kv_heads, block_size, head_dim]`."""
    k_scale: torch.Tensor | None = None
    """`[num_blocks, kv_heads, block_size]`, float32; None unless int8."""
    v_scale: torch.Tensor | None = None

    @property
    def kv_heads(self) -> int:
        return self.k.shape[1]

    @property
    def block_size(self) -> int:
        return self.k.shape[3]

    def write(self, key: torch.Tensor, value: torch.Tensor, blocks: torch.Tensor, offsets: torch.Tensor) -> None:
        """Keep `[rows, kv_heads, head_dim]` of each, row i at `offsets[i]` of `blocks[i]`."""
        if self.k_scale is not None and self.v_scale is not None:
            key, self.k_scale[blocks, :, offsets] = quantized(key)
            value, self.v_scale[blocks, :, offsets] = quantized(value)
        self.k[blocks, :, :, offsets] = key.to(self.k.dtype)
        self.v[blocks, :, offsets] = value.to(self.v.dtype)

    def keys(self, tables: torch.Tensor) -> torch.Tensor:
        """Keys of the tables `[n, blocks]`, as `[n, kv_heads, head_dim, blocks × block_size]` in float32."""
        # index_select copies whole blocks; indexing with a tensor is twenty times slower on this strided view.
        gathered = self.k.index_select(0, tables.flatten()).to(torch.float32)
        if self.k_scale is not None:
            gathered *= self.k_scale.index_select(0, tables.flatten())[:, :, None]
        return gathered.view(*tables.shape, *gathered.shape[1:]).permute(0, 2, 3, 1, 4).flatten(3)

    def values(self, tables: torch.Tensor) -> torch.Tensor:
        """Values of the tables `[n, blocks]`, as `[n, kv_heads, blocks × block_size, head_dim]` in float32."""
        gathered = self.v.index_select(0, tables.flatten()).to(torch.float32)
        if self.v_scale is not None:
            gathered *= self.v_scale.index_select(0, tables.flatten())[..., None]
        return gathered.view(*tables.shape, *gathered.shape[1:]).transpose(1, 2).flatten(2, 3)


def quantized(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`[..., head_dim]` as int8 of the same shape and the scales `[...]`: value = int8 × scale, off by half a scale."""
    vectors = vectors.to(torch.float32)
    scales = (vectors.abs().amax(dim=-1) / LARGEST).clamp(min=SMALLEST_SCALE)
    return (vectors / scales[..., None]).round().to(torch.int8), scales
