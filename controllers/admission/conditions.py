"""The CEL conditions of our webhooks: what the API server sends here, decided before it calls.

Evaluating one costs the API server more than all selectors of all our webhooks, because it first converts the object;
where labels tell as much, `registration` uses selectors.
"""

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.staged_data import NAMES_ANNOTATION, REQUEST_ANNOTATION
from kopt.cluster.workloads.frameworks import QUEUE_REFERENCES
from kopt.cluster.workloads.kinds import BY_KEY, OF_DEPLOYMENT, OTHER_OWNERS, REPLICA_SET, WorkloadKind
from kopt.cluster.workloads.requests.gpus import CLASS_PREFIX, FRACTION_ANNOTATIONS, MEMORY_ANNOTATIONS, SHARE_CLAIM
from kopt.cluster.workloads.workload import OPT_OUT_ANNOTATION
from kopt.controllers.admission.policy import ConformancePolicy
from kopt.core.workload.gpu_share import CHARGE_RESOURCE
from kopt.policies.admission.hardware import HARDWARE_KEY, MEMORY_KEY

_BYPASS = "authorizer.group('kaiwo.ai').resource('conformancepolicies').check('bypass').allowed()"
_OPTED_OUT = (
    "has(object.metadata.annotations) && "
    f"'{OPT_OUT_ANNOTATION}' in object.metadata.annotations && "
    f"object.metadata.annotations['{OPT_OUT_ANNOTATION}'] == 'true'"
)
_HARDWARE = (HARDWARE_KEY, MEMORY_KEY)
_NOT_A_NODE = "!('system:nodes' in request.userInfo.groups)"
_OWNERS = ", ".join(f"'{kind}'" for kind in sorted({kind for _, kind in (*BY_KEY, *OTHER_OWNERS)}))
_OF_DEPLOYMENT = f"(has(object.metadata.labels) && '{OF_DEPLOYMENT}' in object.metadata.labels)"
_EVALUATED = (
    "!has(object.metadata.ownerReferences) || !object.metadata.ownerReferences.exists(o, has(o.controller) && "
    f"o.controller && (o.kind in [{_OWNERS}] || (o.kind == '{REPLICA_SET[1]}' && {_OF_DEPLOYMENT})))"
)
_REQUESTS_DATA = (
    f"has(object.metadata.annotations) && ('{NAMES_ANNOTATION}' in object.metadata.annotations || "
    f"'{REQUEST_ANNOTATION}' in object.metadata.annotations)"
)
_LABELS = "(has(object.metadata.labels) ? object.metadata.labels : {})"
_CHANGED = (
    "request.operation == 'CREATE' || !has(oldObject.spec) || object.spec != oldObject.spec || "
    f"{_LABELS} != {_LABELS.replace('object.', 'oldObject.')}"
)


def mutate_condition(kind: WorkloadKind, policy: ConformancePolicy) -> Object:
    """What is sent to be labelled: GPU workloads without an evaluated owner, and pods that request data."""
    # Pods that a Job makes are seen for their trace contexts only.
    sent_anyway = kind.resource.kind == "Pod" and policy.trace_per_mille > 0
    waits = f" || ({_REQUESTS_DATA})" if kind.resource.kind == "Pod" else ""
    owner = "" if sent_anyway else f"({_EVALUATED}){waits}"
    return _condition("gpu-workload", _and(_requests_gpu(kind), owner, *_unless_exempt(kind)))


def claim_condition() -> Object:
    """Claims that Kubernetes makes for a pod from a template."""
    owned = "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, o.kind == 'Pod')"
    return _condition("generated-claim", owned)


def charge_condition() -> Object:
    """Kueue's Workloads of which pods have claims of shares that we wrote, and are not charged for them yet; none that
    has its quota, as its pods stay, and none that is being deleted."""
    claims = "has(p.template.spec.resourceClaims) && p.template.spec.resourceClaims.exists(c, c.name == "
    overhead = "p.template.spec.overhead"
    charged = f"has({overhead}) && '{CHARGE_RESOURCE}' in {overhead}"
    conditions = "oldObject.status.conditions"
    reserved = f"has(oldObject.status) && has({conditions}) && {conditions}.exists(c, c.type == 'QuotaReserved' && "
    changes = f"!has(object.metadata.deletionTimestamp) && !({reserved}c.status == 'True'))"
    return _condition(
        "has-a-share",
        _and(
            f"object.spec.podSets.exists(p, {claims}'{SHARE_CLAIM}') && !({charged}))",
            f"request.operation == 'CREATE' || ({changes})",
        ),
    )


def relabelled_condition() -> Object:
    """Changes of labels, of which queues of Kueue's are some."""
    return _condition("labels-change", f"{_LABELS} != {_LABELS.replace('object.', 'oldObject.')}")


def unqueued_condition(kind: WorkloadKind, policy: ConformancePolicy) -> Object:
    """What is sent to be refused: GPU workloads without a queue."""
    return _condition("without-queue", _and(_unqueued(kind, policy), *_evaluated(kind)))


def team_condition(kind: WorkloadKind) -> Object:
    """Every pod with GPUs, whoever made it."""
    return _condition("counts-for-a-team", _and(_requests_gpu(kind), _NOT_A_NODE))


def opting_out_condition(kind: WorkloadKind, policy: ConformancePolicy) -> Object:
    """GPU workloads that a user takes out of the queues without the right to."""
    return _condition("opting-out", _and(_opting_out(kind, policy), *_evaluated(kind)))


def validate_condition(kind: WorkloadKind, policy: ConformancePolicy) -> Object:
    """Either of the two. Nearly every object has its queue and no opt-out: two look-ups, the rest is not evaluated."""
    either = f"({_unqueued(kind, policy)}) || ({_opting_out(kind, policy)})"
    return _condition("without-queue-or-opting-out", _and(either, *_evaluated(kind)))


def _condition(name: str, expression: str) -> Object:
    """The API server evaluates every condition of a webhook; one with && stops at the first part that is false."""
    return {"name": name, "expression": expression}


def _and(*expressions: str) -> str:
    return " && ".join(f"({expression})" for expression in expressions if expression)


def _unqueued(kind: WorkloadKind, policy: ConformancePolicy) -> str:
    creates = "" if kind.mutable else "request.operation == 'CREATE'"
    return _and(creates, f"!({_queued('object', kind, policy)})", *_unless_exempt(kind))


def _opting_out(kind: WorkloadKind, policy: ConformancePolicy) -> str:
    """An opt-out that is new, or one that takes effect as the queue's mark goes."""
    before = _OPTED_OUT.replace("object.", "oldObject.")
    dequeues = f"({_queued('oldObject', kind, policy)}) && !({_queued('object', kind, policy)})"
    return _and(_OPTED_OUT, f"request.operation == 'CREATE' || !({before}) || ({dequeues})", f"!{_BYPASS}")


def _queued(root: str, kind: WorkloadKind, policy: ConformancePolicy) -> str:
    reference = QUEUE_REFERENCES[policy.queues.framework]
    path = (*kind.owner, "metadata", reference.section)
    return f"{_present(root, path)} && '{reference.key}' in {_at(root, path)}"


def _evaluated(kind: WorkloadKind) -> tuple[str, ...]:
    return _requests_gpu(kind), _EVALUATED


def _unless_exempt(kind: WorkloadKind) -> tuple[str, ...]:
    changed = (_CHANGED,) if kind.mutable else ()
    return (_NOT_A_NODE, *changed, f"!({_OPTED_OUT} && {_BYPASS})")


def _requests_gpu(kind: WorkloadKind) -> str:
    """Empty for kinds whose GPUs stand in too many places; they are few, and all of them are sent."""
    return _GPU.get("VolcanoJob" if kind.resource.group == "batch.volcano.sh" else kind.resource.kind, "")


def _at(root: str, path: tuple[str | int, ...]) -> str:
    return ".".join((root, *map(str, path)))


def _present(root: str, path: tuple[str | int, ...]) -> str:
    """A condition that every step of a path is there."""
    return " && ".join(f"has({_at(root, path[: end + 1])})" for end in range(len(path)))


def _pod(at: str, parts: tuple[str, ...] = ("limits", "requests")) -> str:
    """Whether the template ``at`` (an object with metadata and spec) asks for a GPU in any way."""
    prefixes = ("amd.com/", "nvidia.com/", "volcano.sh/vgpu", CLASS_PREFIX)
    name = " || ".join(f"k.startsWith('{prefix}')" for prefix in prefixes)
    container = " || ".join(
        f"(has(c.resources) && has(c.resources.{part}) && c.resources.{part}.exists(k, {name}))" for part in parts
    )
    containers = " || ".join(
        f"(has({at}.spec.{part}) && {at}.spec.{part}.exists(c, {container}))"
        for part in ("containers", "initContainers")
    )
    # Which devices are claimed stands in other objects.
    claims = f"has({at}.spec.resourceClaims) && {at}.spec.resourceClaims.size() > 0"
    shares = ", ".join(f"'{item}'" for item in (*FRACTION_ANNOTATIONS, *MEMORY_ANNOTATIONS, *_HARDWARE))
    noted = (
        f"has({at}.metadata) && has({at}.metadata.annotations) && {at}.metadata.annotations.exists(k, k in [{shares}])"
    )
    return f"((has({at}.spec) && ({containers} || ({claims}))) || ({noted}))"


def _own(at: str) -> str:
    """The same for Kubernetes' own kinds: without limits the API server refuses what only requests a GPU."""
    return _pod(at, ("limits",))


def _any_role(path: str) -> str:
    return f"has({path}) && {path}.exists(r, has({path}[r].template) && {_pod(f'{path}[r].template')})"


def _ray(path: str) -> str:
    return (
        f"(has({path}.headGroupSpec) && {_pod(f'{path}.headGroupSpec.template')}) || "
        f"(has({path}.workerGroupSpecs) && {path}.workerGroupSpecs.exists(g, {_pod('g.template')}))"
    )


_LWS = "object.spec.leaderWorkerTemplate"
_GPU: dict[str, str] = {
    "Pod": _own("object"),
    "Deployment": _own("object.spec.template"),
    "StatefulSet": _own("object.spec.template"),
    "Job": _own("object.spec.template"),
    "CronJob": _own("object.spec.jobTemplate.spec.template"),
    "JobSet": f"object.spec.replicatedJobs.exists(j, {_pod('j.template.spec.template')})",
    "LeaderWorkerSet": f"{_pod(_LWS + '.workerTemplate')} || (has({_LWS}.leaderTemplate) && "
    f"{_pod(_LWS + '.leaderTemplate')})",
    "MPIJob": _any_role("object.spec.mpiReplicaSpecs"),
    "PyTorchJob": _any_role("object.spec.pytorchReplicaSpecs"),
    "RayJob": f"has(object.spec.rayClusterSpec) && ({_ray('object.spec.rayClusterSpec')})",
    "RayCluster": _ray("object.spec"),
    "RayService": f"has(object.spec.rayClusterConfig) && ({_ray('object.spec.rayClusterConfig')})",
    "VolcanoJob": f"has(object.spec.tasks) && object.spec.tasks.exists(t, {_pod('t.template')})",
}
