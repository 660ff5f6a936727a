"""Workloads that ask for data, nodes, and the pods of our Jobs, as far as they matter here."""

from dataclasses import dataclass, field

from kopt.cluster.client.resources import Key, Object, Resource
from kopt.cluster.holds.hold import GATE_PREFIX
from kopt.core.staging.staged_data import Request, StageResult, User
from kopt.policies.staging.copies import Run
from kopt.policies.staging.nodes import Gang

HOLDER = "staging"
"""The value of kaiwo.ai/held on workloads that wait for their data."""
GATE = f"{GATE_PREFIX}staging"
"""The scheduling gate of pods that wait for their data."""


@dataclass(frozen=True)
class RequestingWorkload:
    """A workload that asks for data. ``runs``: it is not stopped; ``stopped``: by neither a queue nor a holder of ours;
    ``mode`` is what it says itself."""

    document: Object = field(compare=False, repr=False)
    version: str
    resource: Resource
    key: Key
    uid: str
    request: Request
    holder: str
    next: bool
    queued: bool
    runs: bool
    ran: bool
    stopped: bool
    finished: bool
    opted_out: bool
    mode: str
    parked: bool
    changeable: bool
    """Its controller has stopped it: also a workload that its queue has admitted can be parked then."""
    gangs: tuple[Gang, ...]

    @property
    def name(self) -> str:
        return f"{self.resource.kind} {'/'.join(self.key)}"

    @property
    def user(self) -> User:
        return User(self.resource.kind, self.key[1], self.uid)


@dataclass(frozen=True)
class StagingNode:
    """``gpus``: milli-GPU; ``usable``: ready, not cordoned and not being drained; ``machine``: another one where the
    node was made again, or its system."""

    name: str
    hostname: str
    labels: tuple[tuple[str, str], ...]
    gpus: int
    usable: bool
    machine: str = ""


@dataclass(frozen=True)
class DownloadPod:
    """A pod of one of our Jobs. ``pending_reason`` says why it does not run; ``result`` what it reported at its end."""

    key: Key
    uid: str
    job_uid: str
    running: bool
    ended: bool
    pending_reason: str = ""
    result: StageResult | None = None
    ended_at_s: float = 0.0
    started_s: float = 0.0
    node: str = ""
    scheduled_s: float | None = None
    died: str = ""
    """The system's message for an end that the pod could not report."""
    deleted_at_s: float | None = None
    """When its grace period ends."""


@dataclass(frozen=True)
class DownloadJob:
    """One of our Jobs, without the reports of its pods."""

    document: Object = field(compare=False, repr=False)
    version: str
    key: Key
    uid: str
    data_uid: str
    run: Run


@dataclass(frozen=True)
class QueuedWorkload:
    """A Workload of Kueue's, without most of its object."""

    document: Object = field(compare=False, repr=False)
    version: str
    key: Key
    owner_uid: str
    holder: str
    active: bool
    has_quota: bool
