"""The one random number behind a token: a counter-based uniform that depends on (seed, position) only.

There is no generator state to carry, so a request that is resumed, migrated or batched with others draws the same
numbers. A keyed hash used as a counter-based generator after Salmon et al., "Parallel Random Numbers: As Easy as
1, 2, 3" (2011). Knows nothing of logits.

Several answers to one prompt have a seed each, derived from the request's.
"""

from hashlib import blake2b
from struct import pack

_DRAW = b"diptych.draw.1"
_CHOICE = b"diptych.choice.1"
_SEEDS = 2**64


def uniform(seed: int, position: int) -> float:
    """In [0, 1), a multiple of 2^-53; equal in every process and version.

    `seed` counts modulo 2^64, so the signed and unsigned reading of 64 bits are one seed; `position` is in 0..2^64-1.
    """
    digest = blake2b(pack("<QQ", seed % _SEEDS, position), digest_size=8, person=_DRAW).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def choice_seed(seed: int, index: int) -> int:
    """The seed of answer `index` (1 and up) of several, in -2^63..2^63-1; answer 0 has the request's own."""
    digest = blake2b(pack("<QQ", seed % _SEEDS, index), digest_size=8, person=_CHOICE).digest()
    return int.from_bytes(digest, "little", signed=True)
