"""Whose a request is, and the traffic class it goes with. Pure.

Keys are told apart and not judged: whoever may call at all is decided before the gateway. Only digests go further.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from services.core.errors import InvalidRequest

PLAIN_TIERS = ("", "auto", "default")
"""What clients say who want nothing in particular."""
DIGEST_CHARACTERS = 16


def digest(text: str) -> str:
    """16 hexadecimal digits, as `printf %s KEY | sha256sum | cut -c1-16` prints them; empty for nothing."""
    raw = text.encode("utf-8", "surrogatepass")
    return sha256(raw).hexdigest()[:DIGEST_CHARACTERS] if text else ""


def key_of(authorization: str) -> str:
    """Digest of the key in an `Authorization` header; empty if there is none."""
    scheme, _, key = authorization.strip().partition(" ")
    return digest(key.strip()) if scheme.lower() == "bearer" else ""


def client_of(key: str, user: str) -> str:
    """Whose a request is: its key's, and its user's only without a key, lest a client be many by naming many users."""
    return key or digest(user)


@dataclass(frozen=True, slots=True)
class Tiers:
    """Which traffic class a request goes with."""

    by_tier: Mapping[str, str] = field(default_factory=dict)
    by_key: Mapping[str, str] = field(default_factory=dict)
    """By digest of the key; whoever is here has no choice."""

    def check(self, tier: str) -> None:
        """Raises InvalidRequest for a tier that is not offered."""
        if tier not in PLAIN_TIERS and tier not in self.by_tier:
            raise InvalidRequest("this service tier is not offered here", field="service_tier")

    def class_of(self, key: str, tier: str) -> str:
        """Name of the class; empty: the default."""
        return self.by_key.get(key) or self.by_tier.get(tier, "")
