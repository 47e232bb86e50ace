"""Whose a request is and which class it goes with; no key or name is kept, only digests."""

import pytest

from services.core.errors import InvalidRequest
from services.gateway.clients import Tiers, client_of, digest, key_of

TIERS = Tiers({"flex": "batch", "priority": "gold"}, {digest("secret"): "gold"})


def test_a_digest_is_what_sha256sum_prints() -> None:
    assert digest("abc") == "ba7816bf8f01cfea"


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("Bearer abc", digest("abc")),
        ("bearer  abc ", digest("abc")),
        ("Basic abc", ""),
        ("Bearer", ""),
        ("", ""),
    ],
)
def test_the_key_is_read_from_the_bearer_header(header: str, key: str) -> None:
    assert key_of(header) == key


def test_without_a_key_a_client_is_its_user_and_with_one_it_cannot_be_many() -> None:
    assert client_of("", "") == ""
    assert client_of("", "ann") != client_of("", "bob")
    assert client_of("k", "ann") == client_of("k", "bob") == "k"
    assert "ann" not in client_of("", "ann")
    assert client_of("", "\ud800") != ""


def test_the_key_decides_on_the_class_before_the_tier() -> None:
    assert TIERS.class_of("", "flex") == "batch"
    assert TIERS.class_of(digest("secret"), "flex") == "gold"
    assert [TIERS.class_of("", tier) for tier in ("", "auto", "default")] == ["", "", ""]


def test_a_tier_that_is_not_offered_is_refused_by_name() -> None:
    for tier in ("", "auto", "default", "flex"):
        TIERS.check(tier)
    with pytest.raises(InvalidRequest) as caught:
        TIERS.check("scale")
    assert caught.value.field == "service_tier"
