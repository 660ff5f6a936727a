"""The ledger as it stands in the cluster, with what was written a moment ago."""

import logging
from collections import defaultdict

from kopt.cluster.evictions import entry_of
from kopt.cluster.informer import Change
from kopt.cluster.resources import Key, Object, key_of
from kopt.core.evictions import Entry

_LOG = logging.getLogger(__name__)


class Lines:
    """Fed by an informer and by the writer; of two versions of an object the newer one counts."""

    def __init__(self) -> None:
        self.documents: dict[Key, Object] = {}
        self.entries: dict[Key, Entry] = {}
        self._of: dict[str, set[Key]] = defaultdict(set)

    def changed(self, change: Change[Object]) -> str:
        """The uid of the workload that this is about; empty for what cannot be read."""
        if change.new is None:
            found = self.entries.get(change.key)
            self.remove(change.key)
            return found.eviction.workload.uid if found is not None else ""
        return self.put(change.new)

    def put(self, document: Object) -> str:
        key = key_of(document)
        known = self.documents.get(key)
        if (
            known is not None
            and known["metadata"]["uid"] == document["metadata"]["uid"]
            and _version(known) > _version(document)
        ):
            return self.entries[key].eviction.workload.uid
        try:
            found = entry_of(document)
        except ValueError as error:
            _LOG.warning("%s", error)
            return ""
        self.documents[key], self.entries[key] = document, found
        self._of[found.eviction.workload.uid].add(key)
        return found.eviction.workload.uid

    def remove(self, key: Key) -> None:
        self.documents.pop(key, None)
        found = self.entries.pop(key, None)
        if found is not None:
            keys = self._of[found.eviction.workload.uid]
            keys.discard(key)
            if not keys:
                del self._of[found.eviction.workload.uid]

    def of(self, root: str) -> list[Entry]:
        """A workload's lines, the oldest first."""
        found = [self.entries[key] for key in self._of.get(root, ())]
        return sorted(found, key=lambda one: (one.eviction.evicted_at_s, one.eviction.name))

    @property
    def roots(self) -> list[str]:
        return list(self._of)


def _version(document: Object) -> int:
    found = document["metadata"].get("resourceVersion", "")
    return int(found) if found.isdigit() else 0
