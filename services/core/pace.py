"""How steps really go against what their cost predicts, so that chunks stay within the step's time.

A warm-up measures a machine at one moment, perhaps while others warm up beside it. Each step says what it took; the
ratio to its prediction is followed by an exponential average and scales the cost.
"""

from services.core.plan import StepPlan
from services.core.step_cost import StepCost

WEIGHT = 0.2
"""Of the latest step: five steps make most of the average."""
LEAST, MOST = 0.2, 3.0
"""A ratio beyond these says more about a hiccup than about the machine."""


class Pace:
    """Follows one engine's steps."""

    def __init__(self, cost: StepCost) -> None:
        self._measured = cost
        self._ratio = 1.0

    @property
    def cost(self) -> StepCost:
        """The cost as it is now."""
        return self._measured.scaled(self._ratio)

    def note(self, plan: StepPlan, seconds: float) -> None:
        """A step took so long; 0 if nobody looked at the clock."""
        predicted = self._measured.of((len(chunk.tokens), chunk.start) for chunk in plan.chunks)
        if seconds > 0 and predicted > 0:
            ratio = min(max(seconds / predicted, LEAST), MOST)
            self._ratio += WEIGHT * (ratio - self._ratio)
