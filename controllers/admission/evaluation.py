"""What the policies decide about one workload, and how far each row may go. Shared by the webhooks and the audit."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.namespace import MODE_ANNOTATION
from kopt.cluster.workloads.hardware import NodeHardware
from kopt.cluster.workloads.node_pools import annotation_of, keyed, selectors_of
from kopt.cluster.workloads.requests.external import ObjectRef
from kopt.cluster.workloads.shares.offers import SharedGpus
from kopt.cluster.workloads.workload import NamespaceDefaults, Workload, shape_of, submission_of
from kopt.controllers.admission.policy import ConformancePolicy
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.scheduling.queue_tree import KaiwoPool
from kopt.core.scheduling.submission import Framework, Submission
from kopt.core.workload.executor import Executor
from kopt.policies.admission.hardware import (
    HARDWARE_KEY,
    MEMORY_KEY,
    PLACEMENT_KEY,
    HardwareChoice,
    HardwareWish,
    choose_hardware,
)
from kopt.policies.admission.mode import effective_mode, is_reached
from kopt.policies.admission.pools import POOLS_ANNOTATION, PoolChoice, choose_pools
from kopt.policies.admission.queue import QueueChoice, choose_queue
from kopt.policies.admission.scheduler import Placement, SchedulerChoice, SchedulerSettings, choose_scheduler

_NO_CLASSES = SchedulerChoice(Placement.AS_WRITTEN, (Reason("NO_CLASS", "No scheduler class is configured."),))


class ClusterState(Protocol):
    """The cluster as the webhooks see it, answered from memory."""

    @property
    def policy(self) -> ConformancePolicy: ...

    def namespace(self, name: str) -> NamespaceDefaults | None:
        """None for one that is not known (yet)."""
        ...

    def queues(self, framework: Framework, namespace: str) -> Collection[str] | None:
        """Names that a workload of the namespace can be labelled with; None when that is not known."""
        ...

    def running_schedulers(self) -> Collection[str]:
        """Names of schedulers that are seen running now."""
        ...

    def pools(self) -> Mapping[str, KaiwoPool] | None:
        """Node pools by name; None when that is not known."""
        ...

    def hardware(self) -> Sequence[NodeHardware] | None:
        """Nodes with their accelerators; None when that is not known."""
        ...

    def executor(self) -> Executor:
        """What hands out shares of a GPU."""
        ...

    def sharing(self) -> SharedGpus | None:
        """What nodes offer shares of GPUs by; None when that is not known."""
        ...

    def covered(self, namespace: str, queue: str) -> Collection[str] | None:
        """The resources that a queue of Kueue has quota for; None when that is not known."""
        ...

    def find(self, location: ObjectRef) -> Object | None:
        """An object that may have GPUs of a workload; None for one that is not known (yet)."""
        ...

    def version(self) -> Hashable:
        """Equal at two moments between which neither queues, node pools nor running schedulers have changed under one
        policy."""
        ...


def names_in(queues: Iterable[tuple[str, str]], namespace: str) -> set[str]:
    """The queues that workloads of a namespace can name: its own, and those of the whole cluster."""
    return {name for scope, name in queues if scope in ("", namespace)}


@dataclass(frozen=True)
class FixedState:
    """A state that does not change: for an audit, for notebooks and for tests."""

    policy: ConformancePolicy = field(default_factory=ConformancePolicy)
    namespaces: Mapping[str, NamespaceDefaults] = field(default_factory=dict)
    existing_queues: Collection[tuple[str, str]] | None = None
    """(namespace, name); the namespace is empty for queues of the whole cluster."""
    schedulers: Collection[str] = ()
    elsewhere: Mapping[ObjectRef, Object] = field(default_factory=dict)
    """Objects that have GPUs of workloads."""
    shares: Executor = Executor.UNKNOWN
    """What the cluster shows to hand out shares of a GPU."""
    node_pools: Mapping[str, KaiwoPool] | None = None
    node_hardware: Sequence[NodeHardware] | None = None
    share_offers: SharedGpus | None = None
    covered_resources: Mapping[tuple[str, str], Collection[str]] = field(default_factory=dict)
    """By namespace and name of a queue of Kueue."""

    def namespace(self, name: str) -> NamespaceDefaults | None:
        return self.namespaces.get(name, NamespaceDefaults())

    def queues(self, framework: Framework, namespace: str) -> Collection[str] | None:
        return None if self.existing_queues is None else names_in(self.existing_queues, namespace)

    def running_schedulers(self) -> Collection[str]:
        return self.schedulers

    def pools(self) -> Mapping[str, KaiwoPool] | None:
        return self.node_pools

    def hardware(self) -> Sequence[NodeHardware] | None:
        return self.node_hardware

    def executor(self) -> Executor:
        return self.shares if self.policy.executor is Executor.UNKNOWN else self.policy.executor

    def sharing(self) -> SharedGpus | None:
        return self.share_offers

    def covered(self, namespace: str, queue: str) -> Collection[str] | None:
        return self.covered_resources.get((namespace, queue))

    def find(self, location: ObjectRef) -> Object | None:
        return self.elsewhere.get(location)

    def version(self) -> Hashable:
        return ()


@dataclass(frozen=True)
class Evaluation:
    """The queue (K1), the scheduler (K2) and the node pools (K12, None where none are named) of a workload, each with
    the mode in which its row may act."""

    mode: Mode
    """Of the workload, before any rollout."""
    submission: Submission
    queue: QueueChoice
    queue_mode: Mode
    scheduler: SchedulerChoice
    scheduler_mode: Mode
    sizing_mode: Mode
    pools: PoolChoice | None = None
    pools_mode: Mode = Mode.OBSERVE
    """Of the hardware, too."""
    hardware: HardwareChoice | None = None
    """K21, None where none is named."""
    fractions_mode: Mode = Mode.OBSERVE

    @property
    def acts(self) -> bool:
        """Whether any row does more than observe."""
        modes = (self.queue_mode, self.scheduler_mode, self.sizing_mode, self.pools_mode, self.fractions_mode)
        return any(mode is not Mode.OBSERVE for mode in modes)


def _scheduler(workload: Workload, cluster: ClusterState) -> SchedulerChoice:
    settings = cluster.policy.schedulers
    if settings == SchedulerSettings():
        return _NO_CLASSES
    return choose_scheduler(shape_of(workload), settings, cluster.running_schedulers())


def _pools(workload: Workload, cluster: ClusterState, framework: Framework) -> PoolChoice | None:
    written = annotation_of(workload.document, workload.pod_sets, POOLS_ANNOTATION)
    if not written:
        return None
    return choose_pools(written, cluster.pools(), selectors_of(workload.document, workload.pod_sets), framework)


def hardware_choice(workload: Workload, cluster: ClusterState) -> HardwareChoice | None:
    """The hardware that a workload names; None where it names none."""
    keys = (HARDWARE_KEY, MEMORY_KEY, PLACEMENT_KEY)
    wish = HardwareWish(*(keyed(workload.document, workload.pod_sets, key) for key in keys))
    if not (wish.names or wish.memory):
        return None
    return choose_hardware(
        wish,
        cluster.hardware(),
        selectors_of(workload.document, workload.pod_sets, every=not workload.uses_gpus),
    )


def evaluate(
    workload: Workload, cluster: ClusterState, namespace: NamespaceDefaults, groups: tuple[str, ...]
) -> Evaluation:
    """What should happen to a workload that someone in ``groups`` creates."""
    policy = cluster.policy
    framework = policy.queues.framework
    submission = submission_of(workload, framework, namespace, groups)
    own = workload.annotations.get(MODE_ANNOTATION)
    mode = effective_mode(own, namespace.mode, policy.mode, policy.workload_may_lower)
    owner = workload.owner

    def reached(percent: int) -> Mode:
        return mode if is_reached(percent, owner) else Mode.OBSERVE

    return Evaluation(
        mode,
        submission,
        choose_queue(submission, policy.queues, cluster.queues(framework, workload.namespace)),
        reached(policy.rollout.queues),
        _scheduler(workload, cluster),
        reached(policy.rollout.schedulers),
        reached(policy.rollout.sizing),
        _pools(workload, cluster, framework),
        reached(policy.rollout.pools),
        hardware_choice(workload, cluster),
        reached(policy.rollout.fractions),
    )
