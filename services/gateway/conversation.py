"""One request's way through the gateway, the same for both APIs.

    tokenize (validate, template, ids)  ->  start at a scheduler  ->  stream what comes  ->  finish
                                                  ^---- the scheduler is gone ----'

A client that leaves cancels this at whatever point it is: the request is then dropped at the scheduler.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.core.errors import DeadlinePassed, Draining, NoWorkers, WorkerLost
from services.core.ids import RequestKey
from services.core.request import FinishReason, Request
from services.gateway import validation
from services.gateway.answer import Answer, Delta
from services.gateway.ask import Ask, ChatPrompt, TextPrompt
from services.gateway.attempt import Attempt
from services.gateway.call import Caller, Done
from services.gateway.live_request import LiveRequest
from services.gateway.schedulers import Schedulers
from services.gateway.served_model import ServedModel
from services.gateway.settings import Settings
from services.gateway.transcript import Transcript
from services.runtime.process import Process
from services.runtime.telemetry import traceparent

INLINE_CHARACTERS = 16_384
"""Longer text is tokenized on a thread: at about 1 MB/s it would hold up every other request noticeably."""

LONG_PROMPTS_AT_ONCE = 2
"""Each takes many times its text in memory while it is tokenized."""


class Conversation:
    """Leads requests from a checked ask to their last message. Keeps nothing of any of them."""

    def __init__(
        self, process: Process[Settings], model: ServedModel, schedulers: Schedulers, limits: validation.Limits
    ) -> None:
        self._process = process
        self._model = model
        self._schedulers = schedulers
        self._limits = limits
        self._long_prompts = asyncio.Semaphore(LONG_PROMPTS_AT_ONCE)

    async def run(self, live: LiveRequest, caller: Caller) -> None:
        """Raises InvalidRequest and its kin, NoWorkers, WorkerLost, and whatever error the scheduler answers with."""
        request, answer = await self._prepare(live, caller)
        live.answer = answer
        try:
            while (reason := await self._attempt(live, request, answer, caller)) is None:
                request = request.next_attempt(answer.emitted)
            await self._finish(live, reason, answer, caller)
        except BaseException as error:
            if live.stream_span:
                self._process.telemetry.end(live.stream_span, error)
            raise
        if live.stream_span:
            self._process.telemetry.end(live.stream_span)

    async def _prepare(self, live: LiveRequest, caller: Caller) -> tuple[Request, Answer]:
        with self._process.telemetry.phase("gateway.tokenize", traceparent(live.span)) as span:
            await self._process.faults.pause("gateway.tokenize")
            ask = caller.ask()
            validation.check(ask, self._model, self._limits)
            prompt = await self._tokenize(ask)
            key, seed = RequestKey(live.head.request_id), random.getrandbits(63)
            terms = validation.Terms(key, seed, live.call.deadline)
            request = validation.request(ask, prompt, self._model, terms)
            span.set_attribute("diptych.prompt_tokens", len(prompt))
        detokenizer = self._model.detokenizer(ask.prompt)
        transcript = Transcript(detokenizer, request.stopping.stop_ids, ask.stop)
        return request, Answer(request, transcript, live.call.received_at)

    async def _tokenize(self, ask: Ask) -> tuple[int, ...]:
        if _characters(ask) <= INLINE_CHARACTERS:
            return self._model.tokenize(ask.prompt)
        async with self._long_prompts:
            return await asyncio.to_thread(self._model.tokenize, ask.prompt)

    async def _attempt(
        self, live: LiveRequest, request: Request, answer: Answer, caller: Caller
    ) -> FinishReason | None:
        """Why the answer is complete; None if another scheduler is to go on with it."""
        live.request, live.stage = request, "wait"
        with self._start(live, request) as attempt:
            answer.started(time.monotonic())
            try:
                await self._follow(live, attempt, answer, caller)
            except Draining:
                answer.lost(request.key.attempt, "the scheduler was leaving", time.monotonic())
            live.avoided.add(attempt.session.peer.incarnation)
        return answer.reason

    def _start(self, live: LiveRequest, request: Request) -> Attempt:
        number = request.key.attempt
        if number >= self._process.settings.max_attempts:
            raise WorkerLost(f"{number} schedulers were lost while they held the request")
        try:
            return self._schedulers.start(request, traceparent(live.span), live.avoided)
        except NoWorkers as error:
            if number == 0:
                raise
            raise WorkerLost("the scheduler was lost and there is no other", retry_after=error.retry_after) from None

    async def _follow(self, live: LiveRequest, attempt: Attempt, answer: Answer, caller: Caller) -> None:
        """Sends on what comes, until the answer is complete or the session is gone."""
        was_told = False
        while answer.reason is None:
            arrivals = await attempt.arrivals()
            if not arrivals:
                answer.lost(attempt.key.attempt, "the scheduler was lost", time.monotonic())
                return
            self._mark_streaming(live)
            for arrival in arrivals:
                answer.take(arrival.event, arrival.at)
            if answer.stopped_at is not None and answer.reason is None and not was_told:
                attempt.finish(answer.stopped_at)
                was_told = True
            if answer.reason is None:
                await self._send(live, answer.take_delta(), caller)

    async def _send(self, live: LiveRequest, delta: Delta, caller: Caller) -> None:
        if not delta.text and not delta.token_ids:
            return
        async with _patience(self._process.settings.slow_client_seconds):
            await caller.send(delta)
        self._note_text(live, delta)

    async def _finish(self, live: LiveRequest, reason: FinishReason, answer: Answer, caller: Caller) -> None:
        await self._process.faults.pause("gateway.stream")
        delta = answer.take_delta()
        closing = live.close(time.monotonic())
        # What was held back until the end may have completed a stop string.
        done = Done(live.head, answer.reason or reason, answer.usage, closing, answer.seed)
        async with _patience(self._process.settings.slow_client_seconds):
            await caller.finish(delta, done)
        self._note_text(live, delta)

    def _mark_streaming(self, live: LiveRequest) -> None:
        live.stage = "stream"
        if live.stream_span is None:
            live.stream_span = self._process.telemetry.start("gateway.stream", traceparent(live.span))

    def _note_text(self, live: LiveRequest, delta: Delta) -> None:
        """Time to first token is taken when the first text has left."""
        if delta.text and live.first_text_at is None:
            live.first_text_at = time.monotonic()
            seconds = live.first_text_at - live.call.received_at
            self._process.metrics.observe("diptych_time_to_first_token_seconds", seconds)


@asynccontextmanager
async def _patience(seconds: float) -> AsyncIterator[None]:
    """Around a send: a client that does not read is cut."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise DeadlinePassed(f"the client did not read its answer for {seconds:g} s") from None


def _characters(ask: Ask) -> int:
    match ask.prompt:
        case TextPrompt(text):
            return len(text)
        case ChatPrompt(messages):
            return sum(len(message.content) for message in messages)
        case _:
            return 0
