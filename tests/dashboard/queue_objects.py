"""Workloads in queues, with explanations, for the page of queues."""

from collections.abc import Mapping, Sequence
from typing import Any

from kopt.core.scheduling.eviction import System
from kopt.core.scheduling.queued import Explanation, Queued, QueueState, State


def queued(name: str, state: State = State.PENDING, now_s: float = 0.0, **more: Any) -> Queued:
    """A Job of two GPUs in the queue ``research``, an hour old, for ten minutes in its state."""
    namespace, _, own = name.partition("/")
    fields: dict[str, Any] = {
        "namespace": namespace,
        "name": own,
        "kind": "Job",
        "uid": f"uid-{name}",
        "owner_uid": f"uid-job-{name}",
        "workload": f"job-{own}",
        "system": System.KUEUE,
        "local_queue": "gpus",
        "queue": "research",
        "priority": 100,
        "gpus": 2000,
        "state": state,
        "created_s": now_s - 3600,
        "ordered_s": now_s - 3600,
        "since_s": now_s - 600,
    }
    return Queued(**fields | more)


def explain(several: Sequence[Queued]) -> Mapping[str, Explanation]:
    """Two sentences for each."""
    return {
        one.uid: Explanation(
            f"Job {one.full_name} waits.",
            (f"{one.name} asks for more than is free.", f"{one.name} was evicted before."),
            "Nothing has to be done.",
            ("rayjobs",),
        )
        for one in several
    }


def state(now_s: float, *several: Queued, **more: Any) -> QueueState:
    """A cluster with these, or with one that runs on lent GPUs, two that wait and one that is held."""
    found = several or (
        queued("research/sft", State.RUNNING, now_s, pool="inference", gpus=8000),
        queued("research/urgent", now_s=now_s, position=1, priority=200),
        queued("vision/pretrain", now_s=now_s, position=2, gpus=500),
        queued("vision/embed", State.HELD, now_s, holder="staging"),
        queued("serving/chat", State.RUNNING, now_s, queue="no queue", system=System.NONE, priority=None),
    )
    fields: dict[str, Any] = {"cluster": True, "now_s": now_s, "queued": tuple(found), "explain": explain}
    return QueueState(**fields | more)
