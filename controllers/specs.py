"""The list of controllers: one line each, from which commands, ``kopt off`` and the tests of the chart follow.

How to add one: ``docs/contributing/controller.md``. Nothing heavy is imported here: every ``kopt`` reads the list.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kopt.cluster.runtime.options import ServerOptions
from kopt.controllers.autoscaling.options import Options as AutoscalingOptions
from kopt.controllers.evictions.options import Options as EvictionsOptions
from kopt.controllers.gangs.options import Options as GangsOptions
from kopt.controllers.health.options import Options as HealthOptions
from kopt.controllers.ingest.options import Options as IngestOptions
from kopt.controllers.lending.options import Options as LendingOptions
from kopt.controllers.meter.options import Options as MeterOptions
from kopt.controllers.pairwise.options import Options as PairwiseOptions
from kopt.controllers.partitions.options import Options as PartitionsOptions
from kopt.controllers.preemption.options import Options as PreemptionOptions
from kopt.controllers.queues.options import Options as QueuesOptions
from kopt.controllers.reservations.options import Options as ReservationsOptions
from kopt.controllers.rightsizing.options import Options as RightsizingOptions
from kopt.controllers.runs.options import Options as RunsOptions
from kopt.controllers.sizing.options import Options as SizingOptions
from kopt.controllers.staging.options import Options as StagingOptions

SWITCHES = "featurerollouts.kaiwo.ai"
QUEUES = ("clusterqueues.kueue.x-k8s.io", "queues.scheduling.run.ai", "queues.scheduling.volcano.sh")
SUSPENDED_KINDS = (
    "jobs.batch",
    "jobsets.jobset.x-k8s.io",
    "mpijobs.kubeflow.org",
    "pytorchjobs.kubeflow.org",
    "rayclusters.ray.io",
    "rayjobs.ray.io",
    "trainjobs.trainer.kubeflow.org",
)
"""What staging stops by a field."""


@dataclass(frozen=True)
class ControllerSpec:
    """One controller. Kinds are named as kubectl names them, PLURAL.GROUP; Leases and Events, which every controller
    writes, are left out."""

    name: str
    """Of the command and of the chart's values."""
    module: str
    """Has ``serve(settings)``."""
    ports: tuple[int, ...]
    """Default ports; the first is that of probes and metrics, unless the command says otherwise."""
    options: type[ServerOptions] | None = None
    """Of `kopt controller NAME`; None where the command, `kopt NAME`, has a module of its own in ``cli/cluster``."""
    aliases: tuple[str, ...] = ()
    """Earlier names of the command and of the chart's values; they still work."""
    object_name: str = ""
    """Of its Deployment, ServiceAccount, roles and Lease; default: ``kopt-NAME``. Objects keep an earlier name of their
    controller: under two names two replicas would lead at once (ADR 41)."""
    reads: tuple[str, ...] = ()
    """Kinds that it lists, watches or gets."""
    writes: tuple[str, ...] = ()
    """Kinds that it creates, changes or deletes, subresources included."""
    holds: tuple[str, ...] = ()
    """Kinds on which it puts the label ``kaiwo.ai/held``, and `kopt off` has to release."""
    holder: str = ""
    """The value of that label; default: NAME. It is kept as well: what it marks is released by it (ADR 41)."""
    enabled_by_default: bool = False
    """In the chart."""

    @property
    def command(self) -> tuple[str, ...]:
        """What follows `kopt`."""
        return ("controller", self.name) if self.options else (self.name,)

    @property
    def component(self) -> str:
        """The name that its objects have after the prefix ``kopt-``, and carry in the component label."""
        return self.objects.removeprefix("kopt-")

    @property
    def objects(self) -> str:
        return self.object_name or f"kopt-{self.name}"


CONTROLLERS = (
    ControllerSpec(
        "webhook",
        "kopt.controllers.admission.main",
        (9443, 9444),
        reads=(
            SWITCHES,
            "conformancepolicies.kaiwo.ai",
            "configs.kai.scheduler",
            "kaiwopools.kaiwo.ai",
            "localqueues.kueue.x-k8s.io",
            "migstrategies.kgwe.nvidia.io",
            "mutatingwebhookconfigurations.admissionregistration.k8s.io",
            "namespaces",
            "nodes",
            "resourceflavors.kueue.x-k8s.io",
            "pods",
            "resourceclaims.resource.k8s.io",
            "resourceslices.resource.k8s.io",
            "secrets",
            "sizingprofiles.kaiwo.ai",
            "validatingwebhookconfigurations.admissionregistration.k8s.io",
        ),
        writes=(
            SWITCHES,
            "mutatingwebhookconfigurations.admissionregistration.k8s.io",
            "resourceclaimtemplates.resource.k8s.io",
            "secrets",
            "validatingwebhookconfigurations.admissionregistration.k8s.io",
        ),
        enabled_by_default=True,
    ),
    ControllerSpec(
        "extender",
        "kopt.controllers.extender.main",
        (9445,),
        reads=(
            SWITCHES,
            "gpuworkloads.kgwe.nvidia.io",
            "namespaces",
            "nodeallocations.kaiwo.ai",
            "nodebandwidths.kaiwo.ai",
            "nodehealths.kaiwo.ai",
            "nodes",
            "nodeselectionpolicies.kaiwo.ai",
            "nodetopologies.kaiwo.ai",
            "pods",
        ),
        writes=(SWITCHES, "gpuworkloads.kgwe.nvidia.io", "nodeselectionpolicies.kaiwo.ai", "pods"),
        enabled_by_default=True,
    ),
    ControllerSpec(
        "sizing",
        "kopt.controllers.sizing.main",
        (9446,),
        SizingOptions,
        reads=(
            SWITCHES,
            "clusterqueues.kueue.x-k8s.io",
            "configs.kai.scheduler",
            "jobs.batch",
            "localqueues.kueue.x-k8s.io",
            "namespaces",
            "nodes",
            "pods",
            "sizingprofiles.kaiwo.ai",
            "workloads.kueue.x-k8s.io",
        ),
        writes=(SWITCHES, "jobs.batch", "sizingprofiles.kaiwo.ai", "workloads.kueue.x-k8s.io"),
        holds=("cronjobs.batch", "jobs.batch", "workloads.kueue.x-k8s.io"),
        holder="profiling",
        enabled_by_default=True,
    ),
    ControllerSpec(
        "pairwise",
        "kopt.controllers.pairwise.main",
        (9449,),
        PairwiseOptions,
        aliases=("pairs",),
        object_name="kopt-pairs",
        reads=(
            SWITCHES,
            "jobs.batch",
            "nodebandwidths.kaiwo.ai",
            "nodes",
            "nodetopologies.kaiwo.ai",
            "pairwisebenchmarks.kaiwo.ai",
            "pods",
            "priorityclasses.scheduling.k8s.io",
        ),
        writes=("jobs.batch", "nodebandwidths.kaiwo.ai", "pairwisebenchmarks.kaiwo.ai", "services"),
    ),
    ControllerSpec(
        "evictions",
        "kopt.controllers.evictions.main",
        (9452,),
        EvictionsOptions,
        aliases=("ledger",),
        object_name="kopt-ledger",
        reads=(
            "events.events.k8s.io",
            "evictions.kaiwo.ai",
            "gpuworkloads.kaiwo.silogen.ai",
            "jobs.batch",
            "podgroups.scheduling.run.ai",
            "pods",
            "secrets",
            "workloads.kueue.x-k8s.io",
        ),
        writes=("evictions.kaiwo.ai", "secrets"),
    ),
    ControllerSpec(
        "preemption",
        "kopt.controllers.preemption.main",
        (9454, 9453),
        PreemptionOptions,
        reads=(
            SWITCHES,
            "clusterqueues.kueue.x-k8s.io",
            "cohorts.kueue.x-k8s.io",
            "evictions.kaiwo.ai",
            "jobs.batch",
            "localqueues.kueue.x-k8s.io",
            "mutatingwebhookconfigurations.admissionregistration.k8s.io",
            "namespaces",
            "nodes",
            "pods",
            "queues.scheduling.run.ai",
            "resourceflavors.kueue.x-k8s.io",
            "secrets",
            "workloads.kueue.x-k8s.io",
        ),
        writes=(
            "mutatingwebhookconfigurations.admissionregistration.k8s.io",
            "pods",
            "secrets",
            "workloads.kueue.x-k8s.io",
        ),
        holds=("pods", "workloads.kueue.x-k8s.io"),
    ),
    ControllerSpec(
        "lending",
        "kopt.controllers.lending.main",
        (9455,),
        LendingOptions,
        aliases=("reallocation",),
        object_name="kopt-reallocation",
        reads=(
            SWITCHES,
            *QUEUES,
            "cohorts.kueue.x-k8s.io",
            "evictions.kaiwo.ai",
            "jobs.batch",
            "jobs.batch.volcano.sh",
            "lendingpools.kaiwo.ai",
            "localqueues.kueue.x-k8s.io",
            "namespaces",
            "pods",
            "resourceflavors.kueue.x-k8s.io",
            "secrets",
            "workloads.kueue.x-k8s.io",
        ),
        writes=(
            SWITCHES,
            *QUEUES,
            "commands.bus.volcano.sh",
            "jobs.batch",
            "jobs.batch.volcano.sh",
            "lendingpools.kaiwo.ai",
            "pods",
            "secrets",
            "workloads.kueue.x-k8s.io",
        ),
        holds=(*QUEUES, "jobs.batch", "jobs.batch.volcano.sh", "workloads.kueue.x-k8s.io"),
    ),
    ControllerSpec(
        "staging",
        "kopt.controllers.staging.main",
        (9456,),
        StagingOptions,
        reads=(
            SWITCHES,
            *SUSPENDED_KINDS,
            "namespaces",
            "nodes",
            "persistentvolumeclaims",
            "pods",
            "stageddata.kaiwo.ai",
            "workloads.kueue.x-k8s.io",
        ),
        writes=(*SUSPENDED_KINDS, "pods", "stageddata.kaiwo.ai", "workloads.kueue.x-k8s.io"),
        holds=(*SUSPENDED_KINDS, "pods", "workloads.kueue.x-k8s.io"),
    ),
    ControllerSpec(
        "ingest",
        "kopt.controllers.ingest.main",
        (9457,),
        IngestOptions,
        reads=("lendingpools.kaiwo.ai",),
    ),
    # With another engine its account has rights over that one's queues in place of Kueue's.
    ControllerSpec(
        "queues",
        "kopt.controllers.queues.main",
        (9461,),
        QueuesOptions,
        reads=(
            SWITCHES,
            "clusterqueues.kueue.x-k8s.io",
            "cohorts.kueue.x-k8s.io",
            "kaiwopools.kaiwo.ai",
            "kaiwoqueues.kaiwo.ai",
            "localqueues.kueue.x-k8s.io",
            "pods",
            "resourceflavors.kueue.x-k8s.io",
            "secrets",
            "workloads.kueue.x-k8s.io",
        ),
        writes=(
            "clusterqueues.kueue.x-k8s.io",
            "cohorts.kueue.x-k8s.io",
            "kaiwoqueues.kaiwo.ai",
            "localqueues.kueue.x-k8s.io",
            "pods",
            "resourceflavors.kueue.x-k8s.io",
            "secrets",
            "workloads.kueue.x-k8s.io",
        ),
        holds=("workloads.kueue.x-k8s.io",),
        holder="reclaim",
    ),
    ControllerSpec(
        "runs",
        "kopt.controllers.runs.main",
        (9460,),
        RunsOptions,
        reads=("jobs.batch", "workloads.kueue.x-k8s.io"),
    ),
    ControllerSpec(
        "autoscaling",
        "kopt.controllers.autoscaling.main",
        (9459, 9458),
        AutoscalingOptions,
        reads=(SWITCHES,),
        writes=(SWITCHES,),
    ),
    ControllerSpec(
        "gangs",
        "kopt.controllers.gangs.main",
        (9462,),
        GangsOptions,
        reads=(SWITCHES, "jobs.batch", "namespaces", "nodes", "pods", "secrets", "workloads.kueue.x-k8s.io"),
        writes=("jobs.batch", "pods", "secrets", "workloads.kueue.x-k8s.io"),
        holds=("jobs.batch", "workloads.kueue.x-k8s.io"),
    ),
    ControllerSpec(
        "reservations",
        "kopt.controllers.reservations.main",
        (9463,),
        ReservationsOptions,
        reads=(
            SWITCHES,
            "clusterqueues.kueue.x-k8s.io",
            "jobs.batch",
            "kaiworeservations.kaiwo.ai",
            "localqueues.kueue.x-k8s.io",
            "namespaces",
            "nodes",
            "pods",
            "resourceflavors.kueue.x-k8s.io",
            "secrets",
            "workloads.kueue.x-k8s.io",
        ),
        writes=("jobs.batch", "kaiworeservations.kaiwo.ai", "pods", "secrets", "workloads.kueue.x-k8s.io"),
        holds=("workloads.kueue.x-k8s.io",),
    ),
    ControllerSpec(
        "partitions",
        "kopt.controllers.partitions.main",
        (9464,),
        PartitionsOptions,
        reads=(
            SWITCHES,
            "configmaps",
            "deviceclasses.resource.k8s.io",
            "migstrategies.kgwe.nvidia.io",
            "nodeplans.kaiwo.ai",
            "nodes",
            "partitioningplans.infrastructure.silogen.ai",
            "pods",
            "resourceclaims.resource.k8s.io",
            "resourceslices.resource.k8s.io",
        ),
        writes=("migstrategies.kgwe.nvidia.io", "nodes", "pods"),
        holds=("nodes",),
    ),
    ControllerSpec(
        "meter",
        "kopt.controllers.meter.main",
        (9465,),
        MeterOptions,
        reads=(
            SWITCHES,
            "kaiwobudgets.kaiwo.ai",
            "localqueues.kueue.x-k8s.io",
            "namespaces",
            "nodes",
            "pods",
            "resourceclaims.resource.k8s.io",
            "resourceflavors.kueue.x-k8s.io",
            "resourceslices.resource.k8s.io",
            "workloads.kueue.x-k8s.io",
        ),
        writes=("kaiwobudgets.kaiwo.ai", "localqueues.kueue.x-k8s.io"),
        holds=("localqueues.kueue.x-k8s.io",),
        holder="budget",
    ),
    ControllerSpec(
        "health",
        "kopt.controllers.health.main",
        (9467,),
        HealthOptions,
        reads=(
            SWITCHES,
            "devicetaintrules.resource.k8s.io",
            "nodehealths.kaiwo.ai",
            "nodes",
            "nodetopologies.kaiwo.ai",
            "pods",
            "resourceslices.resource.k8s.io",
        ),
        writes=("devicetaintrules.resource.k8s.io", "nodehealths.kaiwo.ai", "nodes"),
    ),
    # Of workloads it reads those that a pod at stake belongs to: whether they opt out.
    ControllerSpec(
        "rightsizing",
        "kopt.controllers.rightsizing.main",
        (9469,),
        RightsizingOptions,
        reads=(
            SWITCHES,
            "cronjobs.batch",
            "deployments.apps",
            "gpuworkloads.kaiwo.silogen.ai",
            "inferenceservices.serving.kserve.io",
            "jobs.batch",
            "jobs.batch.volcano.sh",
            "jobsets.jobset.x-k8s.io",
            "kaiwojobs.kaiwo.silogen.ai",
            "kaiwoservices.kaiwo.silogen.ai",
            "leaderworkersets.leaderworkerset.x-k8s.io",
            "mpijobs.kubeflow.org",
            "namespaces",
            "pods",
            "pytorchjobs.kubeflow.org",
            "rayclusters.ray.io",
            "rayjobs.ray.io",
            "rayservices.ray.io",
            "replicasets.apps",
            "secrets",
            "statefulsets.apps",
            "trainjobs.trainer.kubeflow.org",
        ),
        writes=("pods", "secrets"),
    ),
)
"""Every controller, in the order of their ports."""


def held_kinds(specs: Iterable[ControllerSpec] = CONTROLLERS) -> frozenset[str]:
    """The kinds that any of them holds."""
    return frozenset(kind for spec in specs for kind in spec.holds)
