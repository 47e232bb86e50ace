"""Blocks offered for the cache: for no hand-over, waited for by nobody, taken while there is room that nobody needs."""

from collections.abc import Iterable

from services.core.handoff import Holder, Party
from services.core.ids import BlockHash, RequestKey
from services.kvstore.block import Answer, Stand
from services.kvstore.block_index import BlockIndex
from services.kvstore.notices import Granted, Notice, Wanted


def offer_for_cache(index: BlockIndex, party: Party, key: RequestKey, hashes: Iterable[BlockHash]) -> list[Notice]:
    """`party` has these. What the store has, or somebody writes already, is not needed. Every block is answered: no
    release settles what is still owed."""
    stand = Stand(Holder("cache", key, party.number), party)
    granted: list[Granted] = []
    refused: list[BlockHash] = []
    not_needed: list[BlockHash] = []
    for block_hash in hashes:
        answer = index.offer(block_hash, stand)
        block = index.find(block_hash)
        if block is None:
            refused.append(block_hash)
        elif answer is Answer.GRANTED:
            granted.append(Granted(block_hash, block.grant))
        else:
            not_needed.append(block_hash)
    if not (granted or refused or not_needed):
        return []
    return [Wanted(party, key, tuple(granted), tuple(refused), tuple(not_needed))]
