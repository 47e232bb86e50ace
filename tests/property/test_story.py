"""Whatever happens to a request, its client gets each token once and in order, and the story ends exactly once."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.core.errors import EngineFault, InvalidRequest, Overloaded, Poisonous, WorkerLost
from services.core.ids import RequestId, RequestKey
from services.core.plan import TokenLogprobs
from services.core.request import FinishReason, Request, Role, Sampling, Stopping
from services.scheduler.story import (
    CancelLeg,
    Effect,
    End,
    FinishLeg,
    PassFirstToken,
    Phase,
    Placement,
    Relay,
    Requeue,
    StartLeg,
    Story,
)
from services.scheduler.suspicion import CLEARED_TOKENS

ANSWER = tuple(range(100, 112))
"""What any worker would answer, from any point on."""


def logprobs_of(ids: tuple[int, ...]) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(-float(token)) for token in ids)


class StoryMachine(RuleBasedStateMachine):
    """Workers that do their part, die, refuse or repeat themselves; a client that may leave."""

    def __init__(self) -> None:
        super().__init__()
        key = RequestKey(RequestId("r"), 0)
        self.story = Story(Request(key, (1, 2, 3), Sampling(), Stopping(len(ANSWER))), max_attempts=3)
        self.client: list[int] = []
        self.roles: dict[str, Role] = {}
        self.drawn: dict[str, int] = {}
        self.ends = 0
        self.losses = self.lost_at = 0
        self.is_cancelled = False
        self.attempts = {0}

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Relay(first_index, ids, logprobs):
                    assert first_index == len(self.client), "each index once and in order"
                    assert logprobs == logprobs_of(ids), "each token with its own"
                    self.client.extend(ids)
                case StartLeg(worker, role):
                    self.roles[worker] = role
                    self.drawn[worker] = len(self.story.request.emitted)
                case PassFirstToken(worker, token):
                    assert self.roles[worker] is Role.DECODE
                    assert token == ANSWER[self.drawn[worker]]
                    self.drawn[worker] += 1
                    self.roles[worker] = Role.WHOLE
                case CancelLeg(worker):
                    self.roles.pop(worker, None)
                case FinishLeg(worker, _):
                    assert worker in self.roles
                case Requeue():
                    assert not self.roles, "an attempt that is over holds nothing"
                    assert self.story.request.emitted == tuple(self.client)
                    assert self.story.request.key.attempt not in self.attempts
                    self.attempts.add(self.story.request.key.attempt)
                case End(_, error):
                    self.ends += 1
                    assert not isinstance(error, Poisonous) or self.losses == 2, "two deaths and no third"
                    self.roles.clear()

    @precondition(lambda self: self.story.phase is Phase.QUEUED)
    @rule(is_split=st.booleans())
    def place(self, is_split: bool) -> None:
        placement = Placement("d", "p", "k") if is_split else Placement("d")
        self.carry_out(self.story.placed(placement))

    @precondition(lambda self: any(role is not Role.DECODE for role in self.roles.values()))
    @rule(data=st.data(), count=st.integers(1, 3), repeat=st.booleans(), is_short=st.booleans())
    def draw(self, data: st.DataObject, count: int, repeat: bool, is_short: bool) -> None:
        able = sorted(worker for worker, role in self.roles.items() if role is not Role.DECODE)
        worker = data.draw(st.sampled_from(able))
        first = self.drawn[worker]
        if self.roles[worker] is Role.PREFILL:
            if self.story.placement.decode in self.roles and self.story.phase is not Phase.STARTED:
                return
            count = 1
        ids = ANSWER[first : first + count]
        if not ids:
            return
        self.drawn[worker] = first + len(ids)
        if is_short and self.story.goes_on(first, ids):
            self.carry_out([Relay(first, ids, logprobs_of(ids))])
            assert not self.story.goes_on(first, ids), "tokens go on twice"
        else:
            self.carry_out(self.story.tokens(worker, first, ids, logprobs_of(ids)))
        if repeat:
            self.carry_out(self.story.tokens(worker, first, ids, logprobs_of(ids)))
        if worker in self.roles and self.drawn[worker] == len(ANSWER):
            self.roles.pop(worker)
            self.carry_out(self.story.finished(worker, FinishReason.LENGTH))

    @precondition(lambda self: self.roles.get("p") is Role.PREFILL and self.story.phase is Phase.ANSWERING)
    @rule()
    def hand_over(self) -> None:
        self.roles.pop("p")
        self.carry_out(self.story.finished("p", FinishReason.HANDED_OVER))

    @precondition(lambda self: bool(self.roles))
    @rule(data=st.data(), error=st.sampled_from([WorkerLost, Overloaded, EngineFault, InvalidRequest]))
    def fail(self, data: st.DataObject, error: type[WorkerLost]) -> None:
        worker = data.draw(st.sampled_from(sorted(self.roles)))
        self.roles.pop(worker)
        self.carry_out(self.story.failed(worker, error("planted")))

    @rule(worker=st.sampled_from(["p", "d", "stranger"]))
    def lose(self, worker: str) -> None:
        prefill = self.story.placement.prefill if self.story.placement else ""
        computing = prefill if prefill and self.story.phase is Phase.STARTED else "d"
        if worker in self.roles and worker == computing:
            has_got_on = len(self.client) >= self.lost_at + CLEARED_TOKENS
            self.losses, self.lost_at = 1 if has_got_on else self.losses + 1, len(self.client)
        self.roles.pop(worker, None)
        self.carry_out(self.story.lost(worker))
        assert self.losses < 2 or self.story.phase is Phase.ENDED, "it is not tried a third time"

    @precondition(lambda self: self.story.phase is not Phase.ENDED)
    @rule()
    def stop_string(self) -> None:
        self.carry_out(self.story.stop_seen(len(self.client)))

    @precondition(lambda self: self.story.phase is not Phase.ENDED)
    @rule()
    def leave(self) -> None:
        self.is_cancelled = True
        self.carry_out(self.story.cancelled())

    @invariant()
    def the_client_has_a_prefix_of_the_answer(self) -> None:
        assert tuple(self.client) == ANSWER[: len(self.client)] == self.story.emitted

    @invariant()
    def it_ends_once_and_then_holds_nothing(self) -> None:
        assert self.ends <= 1
        if self.story.phase is Phase.ENDED:
            assert self.ends == 1 or self.is_cancelled
            assert not self.story.workers

    @invariant()
    def workers_that_hold_something_are_known(self) -> None:
        assert set(self.roles) == set(self.story.workers)


TestStory = StoryMachine.TestCase
TestStory.settings = settings(
    max_examples=300, stateful_step_count=30, suppress_health_check=list(HealthCheck), deadline=None
)
