"""Where the demand of a service is measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DemandSource:
    """``series`` is its name at the prediction endpoint. ``query`` is PromQL that gives one series: the requests in one
    step, ``$step``."""

    series: str
    query: str
