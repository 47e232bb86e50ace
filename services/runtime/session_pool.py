"""The dialling side of sessions: one session per address, kept open, dialled again after a loss."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import Generic

import grpc
import grpc.aio

from services.core.errors import DiptychError
from services.runtime import dial
from services.runtime.session import InT, OutT, Receiver, Session, Terms

log = logging.getLogger(__name__)

FIRST_BACKOFF = 0.05
LONGEST_BACKOFF = 1.0

_REFUSALS = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""Dialling again does not help until somebody changes something."""

Opener = Callable[[grpc.aio.Channel], "grpc.aio.StreamStreamMultiCallable[OutT, InT]"]


class SessionPool(Generic[OutT, InT]):
    """Keeps a session to every address it was asked for. Use as an async context manager; leaving ends all of them."""

    def __init__(
        self,
        out_type: type[OutT],
        open_stream: "Opener[OutT, InT]",
        receiver: Receiver[OutT, InT],
        terms: Terms,
        token: str,
    ) -> None:
        self._out_type: type[OutT] = out_type
        self._open_stream: Opener[OutT, InT] = open_stream
        self._receiver: Receiver[OutT, InT] = receiver
        self._terms = terms
        self._token = token
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._live: dict[str, Session[OutT]] = {}

    def ensure(self, address: str) -> None:
        """Dials `address` unless that is being done already."""
        if address not in self._keepers:
            self._keepers[address] = asyncio.create_task(self._keep(address), name=f"session-{address}")

    def drop(self, address: str) -> None:
        """Ends the session to `address` and dials it no more."""
        if keeper := self._keepers.pop(address, None):
            keeper.cancel()

    def session(self, address: str) -> Session[OutT] | None:
        """The live session to `address`, if there is one."""
        return self._live.get(address)

    def sessions(self) -> Iterable[Session[OutT]]:
        """All live sessions, those whose peer has said hello."""
        return tuple(self._live.values())

    def addresses(self) -> Iterable[str]:
        """All addresses that are dialled."""
        return tuple(self._keepers)

    async def __aenter__(self) -> "SessionPool[OutT, InT]":
        return self

    async def __aexit__(self, *_: object) -> None:
        keepers = list(self._keepers.values())
        self._keepers.clear()
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)

    # A session's life: these stand between it and the receiver to know who is live.
    def opened(self, session: Session[OutT]) -> None:
        self._receiver.opened(session)
        self._live[session.address] = session

    def received(self, session: Session[OutT], message: InT, now: float) -> None:
        self._receiver.received(session, message, now)

    def closed(self, session: Session[OutT]) -> None:
        if self._live.get(session.address) is session:
            del self._live[session.address]
            self._receiver.closed(session)

    async def _keep(self, address: str) -> None:
        backoff, refusal = FIRST_BACKOFF, ""
        async with dial.channel(address) as channel:
            while True:
                session = Session(self._out_type, self._terms, address)
                latest = await self._converse(channel, session)
                if latest and latest != refusal:
                    log.warning("%s refuses the session: %s", address, latest)
                refusal = latest
                has_lasted = time.monotonic() - session.opened_at > LONGEST_BACKOFF
                backoff = FIRST_BACKOFF if has_lasted else min(backoff * 2, LONGEST_BACKOFF)
                # A herd of callers that lost the same process does not come back in step.
                await asyncio.sleep(backoff * random.uniform(0.5, 1.0))

    async def _converse(self, channel: grpc.aio.Channel, session: Session[OutT]) -> str:
        """One session from its opening to its end; why the other side would not have it, if that is how it ended."""
        call = self._open_stream(channel)(metadata=dial.call_metadata(self._token), wait_for_ready=False)
        try:
            await session.run(call.read, call.write, self)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            log.debug("no session with %s", session.address)
        except DiptychError as error:
            # The receiver here would not have the peer.
            return error.message
        except Exception:
            log.exception("session with %s broke", session.address)
        finally:
            call.cancel()
        return str(await call.details()) if await call.code() in _REFUSALS else ""
