"""The recorded evictions in the cluster, with our own latest writes."""

from typing import NamedTuple

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import EVICTIONS, Object
from kopt.cluster.objects.eviction import entry_of
from kopt.cluster.objects.fields import slim
from kopt.cluster.runtime.index import Index
from kopt.cluster.runtime.informer import Informer
from kopt.cluster.runtime.object_cache import ObjectCache
from kopt.core.scheduling.eviction import Entry


class StoredEviction(NamedTuple):
    """An ``Eviction`` and what it says."""

    document: Object
    entry: Entry

    @property
    def workload_uid(self) -> str:
        return self.entry.eviction.workload.uid


def stored_eviction(document: Object) -> StoredEviction:
    """Raises ValueError for one that cannot be read."""
    return StoredEviction(slim(document), entry_of(document))


class EvictionStore:
    """``Eviction`` objects by the workload that they are about."""

    def __init__(self, kube: Kube) -> None:
        self.informer: Informer[StoredEviction] = Informer(kube, EVICTIONS, keep=stored_eviction, required=True)
        self._cache = ObjectCache(self.informer)
        self._of_workload: Index[str, StoredEviction] = Index(lambda stored: [stored.workload_uid])
        self._cache.subscribe(self._of_workload.follow)

    def entries(self) -> list[Entry]:
        return [stored.entry for stored in self._cache.objects.values()]

    def of(self, workload_uid: str) -> list[Entry]:
        """Evictions of one workload, the oldest first."""
        entries = [stored.entry for stored in self._of_workload.of(workload_uid)]
        return sorted(entries, key=lambda entry: (entry.eviction.evicted_at_s, entry.eviction.name))

    def workloads(self) -> list[str]:
        """The uids of all workloads that have one."""
        return self._of_workload.names

    def document(self, entry: Entry) -> Object | None:
        """The object of this record; None if it was deleted since."""
        stored = self._cache.objects.get((entry.eviction.namespace, entry.eviction.name))
        return stored.document if stored is not None else None

    def record(self, document: Object) -> None:
        """Record an answer of the API server."""
        self._cache.record(document)

    def record_deletion(self, document: Object) -> None:
        self._cache.record_deletion(document)
