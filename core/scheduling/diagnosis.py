"""Why a workload does not run, what would let it run, and when it will: the same words for every scheduler."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from kopt.core.reason import Reason


class Binding(StrEnum):
    """What keeps a workload from running. The values are reason codes."""

    ADMISSION_CHECKS = "ADMISSION_CHECKS"
    BORROWING_LIMIT = "BORROWING_LIMIT"
    CLAIM_MISSING = "CLAIM_MISSING"
    CLAIM_UNALLOCATED = "CLAIM_UNALLOCATED"
    COHORT_IN_USE = "COHORT_IN_USE"
    CORDONED = "CORDONED"
    CPU_IN_USE = "CPU_IN_USE"
    CPU_TOO_LARGE = "CPU_TOO_LARGE"
    DEACTIVATED = "DEACTIVATED"
    FITS_NOW = "FITS_NOW"
    FLAVOR_EXCLUDED = "FLAVOR_EXCLUDED"
    GANG_INCOMPLETE = "GANG_INCOMPLETE"
    GATED = "GATED"
    GPUS_FRAGMENTED = "GPUS_FRAGMENTED"
    GPUS_IN_USE = "GPUS_IN_USE"
    GPUS_TOO_MANY = "GPUS_TOO_MANY"
    GPU_ABSENT = "GPU_ABSENT"
    HELD = "HELD"
    MEMORY_IN_USE = "MEMORY_IN_USE"
    MEMORY_TOO_LARGE = "MEMORY_TOO_LARGE"
    NODE_AFFINITY = "NODE_AFFINITY"
    NODE_SELECTOR = "NODE_SELECTOR"
    NOT_READY = "NOT_READY"
    NO_KUEUE = "NO_KUEUE"
    PODS_PER_NODE = "PODS_PER_NODE"
    POD_AFFINITY = "POD_AFFINITY"
    POD_ANTI_AFFINITY = "POD_ANTI_AFFINITY"
    PORT_IN_USE = "PORT_IN_USE"
    PREEMPTS = "PREEMPTS"
    QUEUE_INACTIVE = "QUEUE_INACTIVE"
    QUEUE_LIMIT = "QUEUE_LIMIT"
    QUEUE_ORDER = "QUEUE_ORDER"
    QUEUE_QUOTA = "QUEUE_QUOTA"
    QUEUE_STOPPED = "QUEUE_STOPPED"
    QUEUE_UNKNOWN = "QUEUE_UNKNOWN"
    QUOTA_ABSENT = "QUOTA_ABSENT"
    QUOTA_IN_USE = "QUOTA_IN_USE"
    QUOTA_TOO_SMALL = "QUOTA_TOO_SMALL"
    RESOURCE_IN_USE = "RESOURCE_IN_USE"
    SUSPENDED = "SUSPENDED"
    TAINT = "TAINT"
    TOPOLOGY_SPREAD = "TOPOLOGY_SPREAD"
    VOLUME = "VOLUME"


@dataclass(frozen=True)
class Cause:
    """What binds. ``wanted`` and ``free`` in ``unit``, None where there is no amount; ``about``: the queue, rule or
    resource that it is about; ``since_s``: Unix seconds, None where nobody says."""

    code: Binding
    message: str
    wanted: float | None = None
    free: float | None = None
    unit: str = ""
    about: str = ""
    since_s: float | None = None


class ChangeKind(StrEnum):
    """Ways to let a workload run, those that cost its owner least first."""

    WAIT = "wait"
    TOLERATE = "tolerate"
    DROP_RULE = "drop-rule"
    OTHER_VALUE = "other-value"
    OTHER_QUEUE = "other-queue"
    LESS_CPU = "less-cpu"
    LESS_MEMORY = "less-memory"
    FEWER_GPUS = "fewer-gpus"
    FEWER_PODS = "fewer-pods"


@dataclass(frozen=True)
class Change:
    """A smallest change of its kind. ``verified``: with it the workload fits by the code that places pods and assigns
    quota. ``patch`` are JSON Patch operations (RFC 6902) on the manifest of ``about``, empty where nothing is to be
    written. ``names`` are what has to end, for ``WAIT``."""

    kind: ChangeKind
    message: str
    pod_set: str = ""
    rule: str = ""
    before: str = ""
    after: str = ""
    names: tuple[str, ...] = ()
    verified: bool = False
    about: str = ""
    patch: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class StartEstimate:
    """Seconds from now until it starts. Both are None, with a ``reason``, where it cannot be known."""

    p50_s: float | None = None
    p90_s: float | None = None
    draws: int = 0
    reason: Reason | None = None


@dataclass(frozen=True)
class Diagnosis:
    """What is known about a workload that waits. ``causes`` have what binds first; ``unread`` are kinds that would have
    said more. ``uid`` is that of the Workload, or of what owns the pods; ``queue`` the one that its runs are counted
    in: a ClusterQueue, a queue of KAI's, else its namespace."""

    workload: str
    scheduler: str
    causes: tuple[Cause, ...] = ()
    changes: tuple[Change, ...] = ()
    start: StartEstimate = StartEstimate()
    unread: tuple[str, ...] = ()
    uid: str = ""
    queue: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As ``kopt why -o json`` prints it."""
        return asdict(self)


@dataclass(frozen=True)
class PredictedStart:
    """A start as it was predicted at ``at_s`` (Unix seconds) for the ``job`` with this uid, by draws alone."""

    job: str
    queue: str
    at_s: float
    estimate: StartEstimate
