"""Where the demand of a service is measured."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class DemandSource:
    """``series`` is its name at the prediction endpoint. ``query`` is PromQL that gives one series: the requests in one
    step, ``$step``. Where it follows from an engine and labels, these are given too: such sources can share a query."""

    series: str
    query: str
    engine: str = field(default="", compare=False)
    labels: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """By name, sorted."""
