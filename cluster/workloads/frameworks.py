"""How each queueing system is told a workload's queue, and each gang scheduler its gang.

Sources: Kueue (label on the owner; its own webhooks copy it to where it needs it), KAI-Scheduler 0.12 (label on the
top owner or the pods), Volcano (annotation on the pods or their owner; some kinds have a field of their own).
"""

from dataclasses import dataclass
from types import MappingProxyType

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import Path, text
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.workloads.kinds import PodSet, WorkloadKind
from kopt.core.scheduling.submission import Framework


@dataclass(frozen=True)
class QueueReference:
    """``key`` in ``section`` of the metadata of the owner and, with ``on_pods``, of every pod template."""

    section: str
    key: str
    on_pods: bool = False


QUEUE_REFERENCES = MappingProxyType(
    {
        Framework.KUEUE: QueueReference("labels", "kueue.x-k8s.io/queue-name"),
        Framework.KAI: QueueReference("labels", "kai.scheduler/queue", on_pods=True),
        Framework.VOLCANO: QueueReference("annotations", "scheduling.volcano.sh/queue-name", on_pods=True),
    }
)

_FIELDS: MappingProxyType[tuple[Framework, str, str], Path] = MappingProxyType(
    {
        (Framework.VOLCANO, "batch.volcano.sh", "Job"): ("spec", "queue"),
        (Framework.VOLCANO, "kubeflow.org", "PyTorchJob"): ("spec", "runPolicy", "schedulingPolicy", "queue"),
        (Framework.VOLCANO, "kubeflow.org", "MPIJob"): ("spec", "runPolicy", "schedulingPolicy", "queue"),
        # KubeRay's batch scheduler integration reads this label of the cluster it makes.
        (Framework.VOLCANO, "ray.io", "RayCluster"): ("metadata", "labels", "volcano.sh/queue-name"),
        (Framework.VOLCANO, "ray.io", "RayJob"): ("metadata", "labels", "volcano.sh/queue-name"),
        (Framework.VOLCANO, "ray.io", "RayService"): ("metadata", "labels", "volcano.sh/queue-name"),
    }
)
_NAMED_IN: MappingProxyType[tuple[Framework, str, str], Path] = MappingProxyType(
    {
        # Kaiwo makes the label of what it creates out of this field.
        (Framework.KUEUE, "kaiwo.silogen.ai", "KaiwoJob"): ("spec", "clusterQueue"),
        (Framework.KUEUE, "kaiwo.silogen.ai", "KaiwoService"): ("spec", "clusterQueue"),
    }
)
"""Read where a workload may name its queue, never written."""
QUEUE_SOURCE = "kaiwo.ai/queue-source"
"""The label of objects whose queue is our choice: from where it came."""
VOLCANO_GANG = "scheduling.volcano.sh/group-min-member"
KAI_GANG = "kai.scheduler/batch-min-member"
_KAI_GANG_KINDS = {("batch", "Job"), ("jobset.x-k8s.io", "JobSet")}
"""KAI sizes the gangs of the other kinds by itself; for these it asks for an annotation (ignored up to 0.12)."""


def written_queue(framework: Framework, kind: WorkloadKind, document: Object, pod_sets: tuple[PodSet, ...]) -> str:
    """The queue that a workload names itself; empty for none."""
    for fields in (_FIELDS, _NAMED_IN):
        field = fields.get((framework, *kind.key))
        if field is not None and (named := text(document, *field)):
            return named
    reference = QUEUE_REFERENCES[framework]
    return next((result for path in _paths(reference, kind, pod_sets) if (result := text(document, *path))), "")


def write_queue(
    patch: JsonPatch, framework: Framework, kind: WorkloadKind, pod_sets: tuple[PodSet, ...], queue: str
) -> None:
    """Put the queue where the framework reads it."""
    field = _FIELDS.get((framework, *kind.key))
    if field is not None:
        patch.put(field, queue)
    for path in _paths(QUEUE_REFERENCES[framework], kind, pod_sets):
        patch.put(path, queue)


def write_gang(patch: JsonPatch, framework: Framework, kind: WorkloadKind, pods: int) -> None:
    """Tell the gang scheduler how many pods start together, where it does not count them itself."""
    if framework is Framework.VOLCANO and kind.resource.group != "batch.volcano.sh":
        patch.put((*kind.owner, "metadata", "annotations", VOLCANO_GANG), str(pods))
    if framework is Framework.KAI and kind.key in _KAI_GANG_KINDS:
        patch.put((*kind.owner, "metadata", "annotations", KAI_GANG), str(pods))


def _paths(reference: QueueReference, kind: WorkloadKind, pod_sets: tuple[PodSet, ...]) -> list[Path]:
    paths: list[Path] = [(*kind.owner, "metadata", reference.section, reference.key)]
    if reference.on_pods:
        paths += [
            (*pod_set.metadata, reference.section, reference.key)
            for pod_set in pod_sets
            if pod_set.metadata is not None
        ]
    return list(dict.fromkeys(paths))
