"""What goes wrong on purpose: where it can, in which ways, and at which passages. Decided by count and seed.

    {"kv.put": 0.2}                                         every put begins 0.2 s late
    {"kv.part": {"corrupt": 1, "after": 3, "every": 5}}     the fourth part is corrupt, and every fifth from there on
    {"store.step": {"die": 1, "after": 100}}                the store dies at its 101st message
    {"kv.get": {"throttle": 1e6}}                           blocks come in at a megabyte a second

The same plan decides the same for the same passages in every run. Pure: it says what is to be done; whoever stands at
the seam does it.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import Generic, Literal, NamedTuple, TypeVar

T = TypeVar("T")

Plant = float | Mapping[str, float]
"""What is planted at a seam: seconds of delay, or kinds with their amounts and when they strike."""

DELAY: frozenset[str] = frozenset({"delay"})
PROCESS = DELAY | {"pause", "die"}
LINK = DELAY | {"throttle"}
COPY = PROCESS | {"corrupt"}
MESSAGE = DELAY | {"drop", "duplicate", "reorder"}

SEAMS: Mapping[str, frozenset[str]] = {
    "gateway.tokenize": DELAY,
    "gateway.start": DELAY,
    "gateway.stream": DELAY,
    "scheduler.queue": DELAY,
    "scheduler.start": DELAY,
    "scheduler.first_token": DELAY,
    "scheduler.step": PROCESS,
    "store.step": PROCESS,
    "prefill.step": PROCESS,
    "decode.step": PROCESS,
    "kv.put": LINK,
    "kv.get": LINK,
    "kv.out": COPY,
    "kv.in": COPY,
    "kv.written": MESSAGE,
    "kv.part": MESSAGE | COPY,
}
"""Every seam, and what can be planted there. A step of a scheduler or a store is a message that it hears."""

AMOUNTS: Mapping[str, str] = {
    "delay": "seconds",
    "drop": "1",
    "duplicate": "copies more",
    "corrupt": "1",
    "reorder": "later ones that go ahead",
    "throttle": "bytes per second",
    "pause": "1; whoever planted it resumes the process",
    "die": "1",
}
"""Every kind, and what its number is. 0 plants nothing."""

WHEN: Mapping[str, float] = {"after": 0, "every": 1, "times": 0, "chance": 1, "seed": 0}
"""Which passages it strikes, and what that is unless it is said: from the one after so many, every so many, at most so
many times (0: always), with this chance, drawn from this seed. A throttle is always on."""


class Deed(NamedTuple):
    """What happens at one passage."""

    delay: float = 0.0
    drop: bool = False
    copies: int = 1
    corrupt: bool = False
    hold_back: int = 0
    """So many later ones go ahead."""
    fate: Literal["", "pause", "die"] = ""
    """Of the process."""


NOTHING = Deed()


class FaultPlan:
    """The plants of one process and how often each seam was passed."""

    def __init__(self, plants: Mapping[str, Plant]) -> None:
        """Raises ValueError for a seam, a kind or a number that is not possible; names only what is."""
        self._plants = {seam: _checked(seam, plant) for seam, plant in plants.items()}
        self._passed = dict.fromkeys(self._plants, 0)

    def at(self, seam: str) -> Deed:
        """What happens at this passage of `seam`. One thread at a time for each seam."""
        plant = self._plants.get(seam)
        if plant is None:
            return NOTHING
        count = self._passed[seam]
        self._passed[seam] = count + 1
        return _deed(plant) if _strikes(seam, plant, count) else NOTHING

    def rate(self, seam: str) -> float | None:
        """Bytes per second that pass `seam`; None if that is not limited."""
        return self._plants.get(seam, {}).get("throttle") or None


class Detour(Generic[T]):
    """Things on their way in order, except for what deeds do to them."""

    def __init__(self) -> None:
        self._held: list[tuple[int, list[T]]] = []
        """Held back: how many more go ahead of them."""

    def after(self, thing: T, deed: Deed) -> list[T]:
        """What leaves now that `thing` has come."""
        things = [] if deed.drop else [thing] * deed.copies
        if deed.hold_back and things:
            self._held.append((deed.hold_back, things))
            return []
        if not self._held:
            return things
        waits = [(wait - len(things), held) for wait, held in self._held]
        self._held = [(wait, held) for wait, held in waits if wait > 0]
        return things + [each for wait, held in waits if wait <= 0 for each in held]

    def rest(self) -> list[T]:
        """What was held back, now that nothing more comes."""
        held, self._held = self._held, []
        return [each for _, things in held for each in things]


class NarrowLink:
    """A link of so many bytes per second, which carries one thing after the other."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._is_free_at = -math.inf

    def seconds(self, size: int, now: float) -> float:
        """Until `size` bytes that come now are across."""
        self._is_free_at = max(self._is_free_at, now) + size / self._rate
        return self._is_free_at - now


def corrupted(content: bytes | bytearray | memoryview) -> bytes:
    """The same with one bit changed, in the middle."""
    changed = bytearray(content)
    if changed:
        changed[len(changed) // 2] ^= 1
    return bytes(changed)


def _checked(seam: str, plant: Plant) -> Mapping[str, float]:
    if seam not in SEAMS:
        raise ValueError(f"no such fault seam; there are {', '.join(SEAMS)}")
    said = dict(plant) if isinstance(plant, Mapping) else {"delay": plant}
    kinds = SEAMS[seam]
    if not said.keys() <= kinds | WHEN.keys():
        raise ValueError(f"at {seam} can be planted {', '.join(sorted(kinds))}, with {', '.join(WHEN)}")
    if not all(isinstance(number, int | float) and 0 <= number < math.inf for number in said.values()):
        raise ValueError(f"at {seam} every number must be finite and not negative")
    whole = {**WHEN, **said}
    if whole["every"] < 1 or not 0 < whole["chance"] <= 1:
        raise ValueError(f"at {seam} `every` must be at least 1 and `chance` above 0 and at most 1")
    return whole


def _strikes(seam: str, plant: Mapping[str, float], count: int) -> bool:
    turn, between = divmod(count - int(plant["after"]), int(plant["every"]))
    if turn < 0 or between or (plant["times"] and turn >= plant["times"]):
        return False
    return plant["chance"] == 1 or _draw(seam, plant["seed"], count) < plant["chance"]


def _draw(seam: str, seed: float, count: int) -> float:
    """From 0 up to 1, the same for the same passage."""
    digest = hashlib.blake2b(f"{seam}/{seed:g}/{count}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _deed(plant: Mapping[str, float]) -> Deed:
    return Deed(
        delay=plant.get("delay", 0.0),
        drop=bool(plant.get("drop")),
        copies=1 + int(plant.get("duplicate", 0)),
        corrupt=bool(plant.get("corrupt")),
        hold_back=int(plant.get("reorder", 0)),
        fate="die" if plant.get("die") else "pause" if plant.get("pause") else "",
    )
