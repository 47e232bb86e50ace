"""What a store holds, for whom and since when: sessions, hand-overs, loans, pages lent or in quarantine."""

import time
from collections.abc import Iterable, Iterator

from services.core.handoff import Party
from services.core.ids import RequestKey
from services.kvstore.exchange import Exchange
from services.kvstore.record import Record
from services.kvstore.sessions import DownSession, Sessions
from services.pb import operations_pb2


class Holdings:
    """Remembers since when it has seen what has no age of its own, so ask it now and then."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._seen: dict[tuple[str, ...], float] = {}
        self._names: dict[str, str] = {}
        """Of processes, by incarnation, also of lost ones whose pages are in quarantine."""

    def held(self) -> list[operations_pb2.Holding]:
        now, shelf = time.monotonic(), self._sessions.content()
        sessions = self._sessions.sessions()
        quarantined = shelf.exchange.index.pages.quarantined() if shelf else {}
        self._note_names(sessions, quarantined)
        held = [_of_session(session, now) for session in sessions]
        if shelf is None:
            return held
        for record in shelf.exchange.live():
            held += self._of_record(record, now)
        ageless = [*self._of_loans(shelf.exchange, now), *self._of_grants(shelf.exchange, now)]
        ageless += [
            operations_pb2.Holding(kind="quarantine", count=count, owner=f"{self._names.get(life, '')}/{life}")
            for life, count in quarantined.items()
        ]
        self._date(ageless, now)
        return held + ageless

    # --- private

    def _of_record(self, record: Record, now: float) -> Iterator[operations_pb2.Holding]:
        handoff = record.handoff
        counts = {"handoff": 1, "pins": len(record.sealed) + len(record.bad), "awaited": len(record.unsealed())}
        for kind, count in counts.items():
            if count:
                holding = _holding(kind, handoff.key, count, handoff.state.value)
                holding.age_seconds = now - handoff.since
                yield self._owned(holding, (handoff.writer, handoff.reader), now)

    def _of_loans(self, exchange: Exchange, now: float) -> Iterator[operations_pb2.Holding]:
        for key, party, count in exchange.loans.open():
            yield self._owned(_holding("loan", key, count, ""), (party,), now)

    def _of_grants(self, exchange: Exchange, now: float) -> Iterator[operations_pb2.Holding]:
        """Pages that writers have, by what they are written for."""
        counts: dict[tuple[RequestKey, Party, str], int] = {}
        for block in exchange.index.lent():
            holder = block.writer.holder
            grant = (holder.key, block.writer.party, holder.kind)
            counts[grant] = counts.get(grant, 0) + 1
        for (key, party, kind), count in counts.items():
            yield self._owned(_holding("granted", key, count, kind), (party,), now)

    def _owned(
        self, holding: operations_pb2.Holding, parties: Iterable[Party | None], now: float
    ) -> operations_pb2.Holding:
        sessions = [session for party in parties if party and (session := self._sessions.session_of(party))]
        holding.owner = ", ".join(dict.fromkeys(session.owner for session in sessions))
        holding.last_heard_seconds = min((now - session.heard_at for session in sessions), default=0.0)
        return holding

    def _date(self, holdings: Iterable[operations_pb2.Holding], now: float) -> None:
        """The age of what is seen is at least the time since it was first seen."""
        seen: dict[tuple[str, ...], float] = {}
        for each in holdings:
            what = (each.kind, each.request_id, str(each.attempt), each.state, each.owner)
            seen[what] = self._seen.get(what, now)
            each.age_seconds = now - seen[what]
        self._seen = seen

    def _note_names(self, sessions: Iterable[DownSession], quarantined: Iterable[str]) -> None:
        known = {life: self._names[life] for life in quarantined if life in self._names}
        self._names = known | {session.peer.incarnation: session.peer.name for session in sessions}


def _of_session(session: DownSession, now: float) -> operations_pb2.Holding:
    return operations_pb2.Holding(
        kind="session",
        state=session.peer.name,
        age_seconds=now - session.opened_at,
        count=1,
        owner=session.owner,
        last_heard_seconds=now - session.heard_at,
    )


def _holding(kind: str, key: RequestKey, count: int, state: str) -> operations_pb2.Holding:
    return operations_pb2.Holding(kind=kind, request_id=key.request_id, attempt=key.attempt, count=count, state=state)
