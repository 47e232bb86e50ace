"""The life of a block in a store, as a table in which every pair of state and fact is decided.

A block has one page from the moment a writer may fill it. It is immutable once sealed, is shared by all who pin it, and
gives its page back when nobody can touch it any more.

              OFFER            WRITTEN               EVICT, FOUND_BAD
    ABSENT ──────────▶ GRANTED ───────▶ SEALED ─────────────────────────▶ ABSENT
                        │   ▲              ▲ │ FOUND_BAD while pinned        ▲
               UNWANTED ▼   │ OFFER        │ └──────▶ DOOMED ── LAST_UNPIN ──┘
                       RECALLED ───────────┘
    GRANTED, RECALLED ── FAILED: page free, WRITER_LOST: page quarantined ──▶ ABSENT, offered again for those who wait

RECALLED is the state one forgets: nobody wants the block any more, while its living writer still copies. Its page may
be neither reused nor quarantined; the writer's next word settles it, and a block that is whole by then is kept.

Knows neither pages, sessions nor hand-overs; `kvstore/block_index.py` does what follows from a fact.
"""

from enum import Enum
from typing import NamedTuple


class BlockState(Enum):
    ABSENT = "absent"
    """Not here, or not here any more: whoever still refers to it is late."""
    GRANTED = "granted"
    """A writer has its page; somebody waits for it."""
    RECALLED = "recalled"
    """A writer has its page, and may be copying; nobody waits for it."""
    SEALED = "sealed"
    """Readable: pinned, or cached until evicted."""
    DOOMED = "doomed"
    """Its bytes are bad: not to be found under its hash, kept only until those who pinned it let go."""


class BlockFact(Enum):
    OFFER = "offer"
    """Somebody has it for a hand-over, and waits until it is sealed."""
    CACHE = "cache"
    """Somebody has it, should the store have room to spare."""
    WRITTEN = "written"
    """Its writer says that all bytes are in the page."""
    FAILED = "failed"
    """Its writer says that it will not come, and that no copy into the page runs; also the loss of a writer whose bytes
    the store copies itself."""
    WRITER_LOST = "writer lost"
    """Its writer is out of reach, and may be copying into the page."""
    UNWANTED = "unwanted"
    """The last who waited for it does so no more."""
    PIN = "pin"
    """Somebody will read it."""
    LAST_UNPIN = "last unpin"
    """Nobody reads it any more."""
    FOUND_BAD = "found bad"
    """Its page does not match its checksum."""
    EVICT = "evict"
    """Its page is needed for another."""


class BlockEffect(Enum):
    """What the owner of the blocks has to do, in the order given."""

    GRANT = "grant"
    """Lend a page to whoever offers it; if there is none, the block stays absent and the offer is refused."""
    QUEUE = "queue"
    """Whoever offers it waits for the writer there is."""
    PIN = "pin"
    """Keep it for whoever asked."""
    PIN_WAITING = "pin waiting"
    """Its page is kept; pinned by all who waited for it, or cached if it was for nobody."""
    PASS_ON = "pass on"
    """Offer it again for those who waited for it, in their order."""
    FREE = "free"
    """Its page may be lent again."""
    QUARANTINE = "quarantine"
    """Its page may not be lent until its writer is known to be quiet."""
    CACHE = "cache"
    """It is evicted when its turn comes."""
    UNCACHE = "uncache"
    """It is not evicted any more."""
    HIDE = "hide"
    """It does not stand under its hash any more; the hash may begin another life."""
    MISS = "miss"
    """Whoever asked hears that it is not here."""
    REFUSE = "refuse"
    """Whoever caused the fact is late or wrong; nothing changes."""


class BlockOutcome(NamedTuple):
    state: BlockState
    effects: tuple[BlockEffect, ...] = ()


Table = dict[tuple[BlockState, BlockFact], BlockOutcome]


def _same(state: BlockState, *facts: BlockFact) -> Table:
    return {(state, fact): BlockOutcome(state) for fact in facts}


def _missed(state: BlockState, *facts: BlockFact) -> Table:
    return {(state, fact): BlockOutcome(state, (BlockEffect.MISS,)) for fact in facts}


def _refused(state: BlockState, *facts: BlockFact) -> Table:
    return {(state, fact): BlockOutcome(state, (BlockEffect.REFUSE,)) for fact in facts}


def _in_writing(state: BlockState) -> Table:
    """What GRANTED and RECALLED have in common."""
    return {
        (state, BlockFact.OFFER): BlockOutcome(BlockState.GRANTED, (BlockEffect.QUEUE,)),
        (state, BlockFact.WRITTEN): BlockOutcome(BlockState.SEALED, (BlockEffect.PIN_WAITING,)),
        (state, BlockFact.FAILED): BlockOutcome(
            BlockState.ABSENT, (BlockEffect.HIDE, BlockEffect.FREE, BlockEffect.PASS_ON)
        ),
        (state, BlockFact.WRITER_LOST): BlockOutcome(
            BlockState.ABSENT, (BlockEffect.HIDE, BlockEffect.QUARANTINE, BlockEffect.PASS_ON)
        ),
        (state, BlockFact.UNWANTED): BlockOutcome(BlockState.RECALLED),
        **_same(state, BlockFact.CACHE),
        **_missed(state, BlockFact.PIN),
        **_refused(state, BlockFact.LAST_UNPIN, BlockFact.FOUND_BAD, BlockFact.EVICT),
    }


TABLE: Table = {
    (BlockState.ABSENT, BlockFact.OFFER): BlockOutcome(BlockState.GRANTED, (BlockEffect.GRANT,)),
    (BlockState.ABSENT, BlockFact.CACHE): BlockOutcome(BlockState.GRANTED, (BlockEffect.GRANT,)),
    **_missed(BlockState.ABSENT, BlockFact.PIN),
    **_refused(BlockState.ABSENT, BlockFact.WRITTEN, BlockFact.EVICT),
    **_same(BlockState.ABSENT, BlockFact.FAILED, BlockFact.WRITER_LOST, BlockFact.UNWANTED),
    **_same(BlockState.ABSENT, BlockFact.LAST_UNPIN, BlockFact.FOUND_BAD),
    #
    **_in_writing(BlockState.GRANTED),
    **_in_writing(BlockState.RECALLED),
    #
    (BlockState.SEALED, BlockFact.OFFER): BlockOutcome(BlockState.SEALED, (BlockEffect.UNCACHE, BlockEffect.PIN)),
    (BlockState.SEALED, BlockFact.PIN): BlockOutcome(BlockState.SEALED, (BlockEffect.UNCACHE, BlockEffect.PIN)),
    (BlockState.SEALED, BlockFact.LAST_UNPIN): BlockOutcome(BlockState.SEALED, (BlockEffect.CACHE,)),
    (BlockState.SEALED, BlockFact.FOUND_BAD): BlockOutcome(BlockState.DOOMED, (BlockEffect.UNCACHE, BlockEffect.HIDE)),
    (BlockState.SEALED, BlockFact.EVICT): BlockOutcome(
        BlockState.ABSENT, (BlockEffect.UNCACHE, BlockEffect.HIDE, BlockEffect.FREE)
    ),
    **_refused(BlockState.SEALED, BlockFact.WRITTEN),
    **_same(BlockState.SEALED, BlockFact.CACHE, BlockFact.FAILED, BlockFact.WRITER_LOST, BlockFact.UNWANTED),
    #
    (BlockState.DOOMED, BlockFact.LAST_UNPIN): BlockOutcome(BlockState.ABSENT, (BlockEffect.FREE,)),
    **_missed(BlockState.DOOMED, BlockFact.PIN),
    **_refused(BlockState.DOOMED, BlockFact.OFFER, BlockFact.CACHE, BlockFact.WRITTEN, BlockFact.EVICT),
    **_same(BlockState.DOOMED, BlockFact.FAILED, BlockFact.WRITER_LOST, BlockFact.UNWANTED, BlockFact.FOUND_BAD),
}

IN_WRITING = frozenset({BlockState.GRANTED, BlockState.RECALLED})
"""Its page is lent to a writer."""
