"""How much work a request is, in tokens: what its client is charged when it gets a place. Pure."""

from collections import OrderedDict

from services.core.request import Request

ANSWER_WEIGHT = 2.0
"""A token of the answer counts as so many of the prompt (Sheng et al., "Fairness in Serving Large Language Models",
OSDI 2024)."""
_MEMORY = 0.2
_MOST_CLIENTS = 4096


class Expected:
    """How long the answers of each client have been, for what they will be: most ask for far more than they get."""

    def __init__(self) -> None:
        self._means: OrderedDict[str, float] = OrderedDict()
        """By client, who was heard of last at the end."""

    def answer(self, request: Request) -> float:
        """Tokens still to be expected; as many as are asked for while the client is not known."""
        left = request.stopping.max_tokens - len(request.emitted)
        mean = self._means.get(request.client)
        return float(left) if mean is None else min(max(mean - len(request.emitted), 1.0), float(left))

    def ended(self, client: str, tokens: int) -> None:
        """An answer of so many tokens is complete."""
        mean = self._means.pop(client, float(tokens))
        self._means[client] = mean + _MEMORY * (tokens - mean)
        if len(self._means) > _MOST_CLIENTS:
            self._means.popitem(last=False)


def work_of(request: Request, cached_tokens: int, expected: Expected) -> float:
    """Tokens of the prompt that must be computed, and the answer's by their weight; at least 1."""
    uncached = len(request.tokens) - cached_tokens
    return max(uncached + ANSWER_WEIGHT * expected.answer(request), 1.0)
