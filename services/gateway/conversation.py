"""One request's way through the gateway, the same for both APIs.

    tokenize (validate, template, ids)  ->  start at a scheduler  ->  stream what comes  ->  finish
                                                  ^---- the scheduler is gone ----'

Several answers to one prompt are as many requests to the scheduler, with ids and seeds of their own. The others start
when the first has had the prompt computed, and find it in the workers' caches; they fail, end and are cancelled as one.
A client that leaves cancels this at whatever point it is: everything is then dropped at the scheduler.
"""

import asyncio
import random
import time
from collections.abc import Sequence

from services.core.ids import RequestKey
from services.core.request import Request
from services.gateway import validation
from services.gateway.answer import Answer
from services.gateway.ask import Ask, ChatPrompt, TextPrompt
from services.gateway.call import Caller
from services.gateway.clients import client_of
from services.gateway.live_request import LiveRequest
from services.gateway.outlet import Outlet
from services.gateway.pursuit import Pursuit
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
        requests = await self._prepare(live, caller)
        outlet = Outlet(self._process, live, caller)
        pursuits = [Pursuit(self._process, self._schedulers, live, answer, outlet) for answer in live.answers]
        live.stage = "wait"
        try:
            await _run_all(pursuits, requests)
        except BaseException as error:
            if live.stream_span:
                self._process.telemetry.end(live.stream_span, error)
            raise
        if live.stream_span:
            self._process.telemetry.end(live.stream_span)

    async def _prepare(self, live: LiveRequest, caller: Caller) -> list[Request]:
        """One request for each answer; the answers are then on `live`."""
        with self._process.telemetry.phase("gateway.tokenize", traceparent(live.span)) as span:
            await self._process.faults.wait("gateway.tokenize")
            ask = caller.ask()
            validation.check(ask, self._model, self._limits)
            prompt = await self._tokenize(ask)
            key, seed = RequestKey(live.head.request_id), random.getrandbits(63)
            client = client_of(live.call.key, ask.user)
            traffic_class = self._limits.tiers.class_of(live.call.key, ask.service_tier)
            terms = validation.Terms(key, seed, live.call.deadline, client, traffic_class)
            request = validation.request(ask, prompt, self._model, terms)
            span.set_attribute("diptych.prompt_tokens", len(prompt))
        requests = [request.choice(index) for index in range(ask.n)]
        live.begin(request, [self._answer(live, ask, each, index) for index, each in enumerate(requests)])
        return requests

    def _answer(self, live: LiveRequest, ask: Ask, request: Request, index: int) -> Answer:
        detokenizer = self._model.detokenizer(ask.prompt)
        transcript = Transcript(detokenizer, request.stopping.stop_ids, ask.stop)
        return Answer(request, transcript, live.call.received_at, index)

    async def _tokenize(self, ask: Ask) -> tuple[int, ...]:
        if _characters(ask) <= INLINE_CHARACTERS:
            return self._model.tokenize(ask.prompt)
        async with self._long_prompts:
            return await asyncio.to_thread(self._model.tokenize, ask.prompt)


async def _run_all(pursuits: Sequence[Pursuit], requests: Sequence[Request]) -> None:
    """Raises what the first of them to fail raised; the others are cancelled by then."""
    first, others = pursuits[0], pursuits[1:]
    if not others:
        return await first.run(requests[0])
    for other in others:
        other.answer.held(time.monotonic())
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(first.run(requests[0]), name="answer-0")
            await first.has_prompt.wait()
            for index, other in enumerate(others, 1):
                tasks.create_task(other.run(requests[index]), name=f"answer-{index}")
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def _characters(ask: Ask) -> int:
    match ask.prompt:
        case TextPrompt(text):
            return len(text)
        case ChatPrompt(messages):
            return sum(len(message.content) for message in messages)
        case _:
            return 0
