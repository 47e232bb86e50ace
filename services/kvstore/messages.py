"""What a session carries, into the exchange's words and back."""

from collections.abc import Iterable

from services.core.errors import InvalidRequest
from services.core.ids import BlockHash
from services.kvstore.exchange import Offer, Sealing
from services.kvstore.notices import Available, BlockRef, Closed, Lent, Notice, Wanted
from services.pb import kvstore_pb2
from services.runtime.codec import handoff_to_pb, key_from_pb

MAX_HASH_BYTES = 64


def hashes_from_pb(raws: Iterable[bytes]) -> list[BlockHash]:
    """Raises InvalidRequest for what cannot be a hash."""
    hashes = [BlockHash(raw) for raw in raws]
    if not all(0 < len(each) <= MAX_HASH_BYTES for each in hashes):
        raise InvalidRequest("a hash is empty or too long", field="hashes")
    return hashes


def offer_from_pb(offer: kvstore_pb2.Offer) -> Offer:
    """Raises InvalidRequest."""
    hashes = hashes_from_pb(offer.hashes)
    return Offer(key_from_pb(offer.handoff), offer.first_index, hashes, offer.complete, offer.cache)


def sealings_from_pb(written: kvstore_pb2.Written) -> list[Sealing]:
    return [Sealing(BlockHash(each.hash), each.generation, each.checksum) for each in written.blocks]


def notice_to_pb(notice: Notice) -> kvstore_pb2.StoreUp:
    """Pages are told to those who copy into them and out of them by themselves."""
    handoff, is_near = handoff_to_pb(notice.key), notice.to.is_near
    match notice:
        case Wanted():
            wanted = kvstore_pb2.Wanted(handoff=handoff, refused=notice.refused, not_needed=notice.not_needed)
            for block_hash, grant in notice.granted:
                page = grant.page if is_near else None
                wanted.grants.add(hash=block_hash, page=page, generation=grant.generation)
            return kvstore_pb2.StoreUp(wanted=wanted)
        case Available():
            available = kvstore_pb2.Available(
                handoff=handoff, blocks=_refs(notice.blocks, is_near), complete=notice.is_complete, never=notice.never
            )
            return kvstore_pb2.StoreUp(available=available)
        case Closed():
            closed = kvstore_pb2.Closed(handoff=handoff, reason=notice.error.reason, message=notice.error.message)
            return kvstore_pb2.StoreUp(closed=closed)
        case Lent():
            return kvstore_pb2.StoreUp(lent=kvstore_pb2.Lent(loan=handoff, blocks=_refs(notice.blocks, is_near)))


def _refs(blocks: Iterable[BlockRef], is_near: bool) -> list[kvstore_pb2.BlockRef]:
    return [
        kvstore_pb2.BlockRef(
            index=ref.index,
            hash=ref.hash,
            page=ref.grant.page if is_near else None,
            generation=ref.grant.generation,
            checksum=ref.checksum,
        )
        for ref in blocks
    ]
