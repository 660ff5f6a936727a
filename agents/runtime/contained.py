"""Failures that stayed with their object (``cluster.runtime.isolation``), counted as controllers count theirs."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kopt.cluster.runtime.isolation import Isolation, Subject

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Contained:
    """Of one agent; ``isolation`` is for its informers.

    The log has the sentence. Events would need a right with which a hostile node could write them on anybody's objects.
    """

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self.isolation = Isolation(agent, self._count)
        self.failures: Counter[tuple[str, str]] = Counter()
        """By kind and reason."""

    def _count(self, subject: Subject, reason: str, _sentence: str) -> None:
        self.failures[subject.kind, reason] += 1

    def metrics(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily

        errors = CounterMetricFamily(
            "kopt_object_errors",
            "Objects that cannot be read or handled; all others are.",
            labels=["controller", "kind", "reason"],
        )
        for (kind, reason), count in sorted(self.failures.items()):
            errors.add_metric([self._agent, kind, reason], count)
        yield errors
