"""Which queues are written, by the switch ``declared-queues``.

The queues of a tree share quotas, so that a tree is on one side of a percentage as a whole, by the name of its root.
"""

from dataclasses import dataclass

from kopt.cluster.client.resources import KAIWO_QUEUES, KUEUE_FLAVORS
from kopt.cluster.objects.fields import text
from kopt.cluster.runtime.switches import Gate
from kopt.core.decision import Mode
from kopt.core.scheduling.queue_tree import ADDED_LABEL
from kopt.core.switches import Owner
from kopt.policies.queues import QueueTree
from kopt.policies.queues.differences import ObjectChange

FEATURE, FLAVOR = "declared-queues", KUEUE_FLAVORS.kind


@dataclass(frozen=True)
class Rollout:
    """Of the queues of one pass, in mode ``mode``."""

    tree: QueueTree
    gate: Gate
    mode: Mode

    def root(self, queue: str) -> str:
        """A queue that is declared no more stands for itself."""
        return self.tree.lineage(queue)[-1] if queue in self.tree.queues else queue

    def includes(self, queue: str) -> bool:
        """Whether what a queue becomes is written."""
        owner = Owner.of(KAIWO_QUEUES.plural, "", self.root(queue))
        return self.gate.mode(FEATURE, owner, self.mode) is Mode.ENFORCE

    def writes(self, change: ObjectChange) -> bool:
        """Whether a change is made. Flavors are of all trees, and are written before the first."""
        if change.kind == FLAVOR:
            return self.mode is Mode.ENFORCE and not self.gate.is_off(FEATURE)
        return self.includes(queue_of_change(change))


def queue_of_change(change: ObjectChange) -> str:
    """The queue for which an object is there; not for flavors."""
    document = dict(change.document)
    metadata = document["metadata"]
    return text(metadata, "labels", ADDED_LABEL) or text(document, "spec", "clusterQueue") or str(metadata["name"])
