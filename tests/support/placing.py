"""Placement as tests ask for it."""

from services.core.blocks import BlockNames
from services.core.request import Request
from services.scheduler.asking import Asking, Rules
from services.scheduler.cluster_view import ClusterView
from services.scheduler.policies import POLICIES
from services.scheduler.story import Placement


def asking(
    request: Request,
    view: ClusterView,
    names: BlockNames | None = None,
    now: float = 0.0,
    rules: Rules = Rules(),  # noqa: B008  # frozen
) -> Asking:
    """The request before the view."""
    return Asking(request, view, names or BlockNames(request.salt), now, rules)


def place(asked: Asking, fingerprint: str = "", policy: str = "ours") -> Placement | None:
    """Where it goes."""
    return POLICIES[policy](asked, fingerprint)
