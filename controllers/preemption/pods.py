"""One watch of the cluster's pods for all who read them, each in its own way."""

from collections.abc import Callable
from typing import Any, TypeVar

from kopt.cluster.api import Kube
from kopt.cluster.informer import Change, Informer
from kopt.cluster.resources import PODS, Object

T = TypeVar("T")


class SeenPods:
    """Readers are added before ``informer`` runs."""

    def __init__(self, kube: Kube) -> None:
        self._readers: list[Callable[[Object], Any]] = []
        self.informer: Informer[tuple[Any, ...]] = Informer(kube, PODS, keep=self._keep)

    def read(self, reader: Callable[[Object], T | None], told: Callable[[Change[T]], None]) -> Callable[[], list[T]]:
        """What gives the pods that there are, as ``reader`` makes them; ``told`` is called for each that changes."""
        number = len(self._readers)
        self._readers.append(reader)

        def passed(change: Change[tuple[Any, ...]]) -> None:
            old, new = (one[number] if one else None for one in (change.old, change.new))
            if old is not None or new is not None:
                told(Change(change.kind, change.key, old, new))

        self.informer.subscribe(passed)
        return lambda: [one[number] for one in self.informer.objects.values() if one[number] is not None]

    def _keep(self, pod: Object) -> tuple[Any, ...] | None:
        found = tuple(reader(pod) for reader in self._readers)
        return found if any(one is not None for one in found) else None
