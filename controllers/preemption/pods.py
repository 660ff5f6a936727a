"""One watch of the cluster's pods for all who read them, each in its own way."""

from collections.abc import Callable
from typing import Any, TypeVar

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import PODS, Object
from kopt.cluster.runtime.informer import Change, Informer

T = TypeVar("T")


class ObservedPods:
    """Readers are added before ``informer`` runs."""

    def __init__(self, kube: Kube) -> None:
        self._readers: list[Callable[[Object], Any]] = []
        self.informer: Informer[tuple[Any, ...]] = Informer(kube, PODS, keep=self._keep)

    def read(
        self, reader: Callable[[Object], T | None], subscriber: Callable[[Change[T]], None]
    ) -> Callable[[], list[T]]:
        """A function that returns all pods as read by ``reader``; ``subscriber`` is called with every change."""
        number = len(self._readers)
        self._readers.append(reader)

        def passed(change: Change[tuple[Any, ...]]) -> None:
            old, new = (item[number] if item else None for item in (change.old, change.new))
            if old is not None or new is not None:
                subscriber(Change(change.kind, change.key, old, new))

        self.informer.subscribe(passed)
        return lambda: [item[number] for item in self.informer.objects.values() if item[number] is not None]

    def _keep(self, pod: Object) -> tuple[Any, ...] | None:
        result = tuple(reader(pod) for reader in self._readers)
        return result if any(item is not None for item in result) else None
