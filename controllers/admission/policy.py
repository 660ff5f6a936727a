"""The ``ConformancePolicy`` named ``default``: decoded JSON to the settings of the policies."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, count, items, mapping, text, texts
from kopt.cluster.workloads.shares.executors import stated_by
from kopt.core.decision import Mode, may_lower
from kopt.core.scheduling.submission import Framework
from kopt.core.switches import Switches
from kopt.core.units import WHOLE_GPU, MilliGpu, UnitError, parse_milli_gpu
from kopt.core.workload.executor import Executor
from kopt.policies.admission.queue import QueueRule, QueueSettings
from kopt.policies.admission.scheduler import SPREAD_KEYS, GangClass, PackingClass, SchedulerSettings, SpreadClass
from kopt.policies.sizing.advice import CertaintySettings

LARGEST_BUDGET_S = 0.3


class PolicyError(ValueError):
    """A ConformancePolicy that cannot be used; the message names the field. The schema lets none of these through."""


class Namespaces(StrEnum):
    """Which namespaces the webhooks see: those labelled ``kaiwo.ai/managed: "true"``, or all but ``"false"``."""

    OPT_IN = "OptIn"
    OPT_OUT = "OptOut"


@dataclass(frozen=True)
class Evidence:
    """What shows that a scheduler runs: its Lease, renewed in time, or a Deployment with available replicas."""

    scheduler: str
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True)
class Rollout:
    """Per row, the percentage of workloads on which it acts as its mode says; on the others it observes."""

    queues: int = 100
    schedulers: int = 100
    sizing: int = 100
    pools: int = 100
    fractions: int = 100

    def at_most(self, switches: Switches) -> "Rollout":
        """Where both the policy and the cluster's switches say how far a feature goes, the smaller counts."""
        return Rollout(
            min(self.queues, switches.percent("queues")),
            min(self.schedulers, switches.percent("schedulers")),
            min(self.sizing, switches.percent("sizing")),
            min(self.pools, switches.percent("pools")),
            min(self.fractions, switches.percent("fractions")),
        )

    @cached_property
    def picks_by_name(self) -> bool:
        """Whether a row acts on some workloads and not on others. Asked for every pod."""
        return any(0 < percent < 100 for percent in astuple(self))


@dataclass(frozen=True)
class ConformancePolicy:
    """Everything that the webhooks are configured with; the defaults are those of a cluster without the object."""

    generation: int = 0
    """Of the object, 0 without one."""
    mode: Mode = Mode.OBSERVE
    workload_may_lower: bool | None = None
    """Whether a workload may ask for less than its namespace; None: not where that says enforce."""
    namespaces: Namespaces = Namespaces.OPT_IN
    queues: QueueSettings = QueueSettings()
    schedulers: SchedulerSettings = SchedulerSettings()
    evidence: tuple[Evidence, ...] = ()
    certainty: CertaintySettings = CertaintySettings()
    sizing_budget_s: float = LARGEST_BUDGET_S
    executor: Executor = Executor.UNKNOWN
    """What hands out shares of a GPU, where the cluster's signs are not to be read."""
    rollout: Rollout = field(default_factory=Rollout)
    trace_per_mille: int = 10
    counts_teams: bool = False
    """Whether CompliancePolicies limit what teams have together: every pod with GPUs is sent then."""


def parse_policy(document: Object) -> ConformancePolicy:
    """The policy in a custom resource. Raises PolicyError."""
    spec = mapping(document, "spec")
    schedulers, evidence = _schedulers(spec)
    try:
        return ConformancePolicy(
            generation=count(document, "metadata", "generation", default=0),
            mode=Mode(text(spec, "mode") or Mode.OBSERVE),
            workload_may_lower=may_lower(text(spec, "workloadMode")),
            namespaces=Namespaces(text(spec, "namespaces") or Namespaces.OPT_IN),
            queues=_queues(spec),
            schedulers=schedulers,
            evidence=evidence,
            certainty=CertaintySettings(min_confidence=count(spec, "sizing", "minConfidencePercent", default=80) / 100),
            sizing_budget_s=min(count(spec, "sizing", "budgetMilliseconds", default=300) / 1000, LARGEST_BUDGET_S),
            executor=stated_by(document),
            rollout=Rollout(*(count(spec, "rollout", row.name, default=100) for row in fields(Rollout))),
            trace_per_mille=count(spec, "tracing", "samplesPerThousand", default=10),
        )
    except ValueError as error:
        raise PolicyError(f"ConformancePolicy {text(document, 'metadata', 'name')!r}: {error}") from error


def _queues(spec: Any) -> QueueSettings:
    return QueueSettings(
        framework=Framework(text(spec, "framework") or Framework.KUEUE),
        priority_classes=tuple(_rules(spec, "priorityClasses")),
        groups=tuple(_rules(spec, "groups")),
        default=text(spec, "queues", "default"),
    )


def _rules(spec: Any, name: str) -> Iterator[QueueRule]:
    for _, rule in items(spec, "queues", name):
        if text(rule, "name") and text(rule, "queue"):
            yield QueueRule(text(rule, "name"), text(rule, "queue"))


def _schedulers(spec: Any) -> tuple[SchedulerSettings, tuple[Evidence, ...]]:
    packing, gang, spread = (at(spec, "schedulers", name) for name in ("packing", "gang", "spread"))
    evidence = tuple(result for item in (packing, gang) for result in _evidence(item))
    settings = SchedulerSettings(
        packing=PackingClass(text(packing, "scheduler"), _gpus(packing), _selector(packing)) if packing else None,
        gang=GangClass(
            text(gang, "scheduler"),
            Framework(text(gang, "framework") or Framework.KAI),
            count(gang, "minPods", default=2),
            text(gang, "queue"),
            _selector(gang),
        )
        if gang
        else None,
        spread=SpreadClass(texts(spread, "topologyKeys") or SPREAD_KEYS) if spread is not None else None,
    )
    return settings, evidence


def _gpus(packing: Any) -> MilliGpu:
    stated = at(packing, "maxGpus")
    try:
        return WHOLE_GPU if stated is None else parse_milli_gpu(str(stated))
    except UnitError as error:
        raise PolicyError(f"spec.schedulers.packing.maxGpus: {error}") from error


def _selector(scheduler: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(key), value) for key, value in items(scheduler, "nodeSelector") if isinstance(value, str))


def _evidence(scheduler: Any) -> Iterator[Evidence]:
    for kind in ("lease", "deployment"):
        result = mapping(scheduler, "running", kind)
        if result:
            yield Evidence(text(scheduler, "scheduler"), kind, text(result, "namespace"), text(result, "name"))
