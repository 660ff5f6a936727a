"""LendingPools, evictions and StagedData as their controllers write them, for the page of the cluster."""

import math
from datetime import UTC, datetime
from typing import Any

from kopt.cluster.objects.eviction import body_of, entry_of, status_of
from kopt.controllers.overview.documents import pool_of, staged_of
from kopt.core.scheduling.eviction import Cause, Eviction, Phase, Return, System, Verified, WorkloadRef
from kopt.core.scheduling.overview import Overview
from kopt.core.switches import Alarm, Switches

Object = dict[str, Any]


def switches(now_s: float) -> Switches:
    """One feature on trial, and one that an alarm has switched off after a person had switched it on."""
    misses = Alarm("Drift", "sizing@7", "sizing 7: 71.0% of the last 200 measurements lay in the predicted interval.")
    trial = Switches().set_by("alice@example.com", "placement", 10, "first trial", now_s - 90_000)
    assert trial is not None
    on = trial.set_by("bob@example.com", "profiling", 50, "half of the Jobs", now_s - 50_000)
    assert on is not None
    off = on.fall_back("system:serviceaccount:kopt-system:kopt-sizing", "profiling", misses, now_s - 1_200)
    assert off is not None
    return off


GIB = 1 << 30


def stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def history(now_s: float, gpus: int = 32, moments: int = 288, lead_s: float = 1800.0) -> list[Object]:
    """A day of a service that is busy by day: what is lent follows the forecast; a spike takes it back."""

    def demand(at_s: float) -> float:
        hours = (at_s - now_s) / 3600
        calm = 9 + 6 * math.sin((hours + 3) / 24 * 2 * math.pi)
        return calm + 10 * math.exp(-(((hours + 5) / 0.8) ** 2)) + 0.6 * math.sin(hours * 17)

    found: list[Object] = []
    for back in range(moments, 0, -1):
        at_s = now_s - back * 300 + 120
        p50, p99 = demand(at_s + lead_s), demand(at_s + lead_s) * 1.15 + 2
        provision = min(gpus, math.ceil(max(p99, demand(at_s) + 1)))
        lent = max(0, 4 * ((gpus - provision) // 4))
        before = found[-1]["lent"] if found else lent
        # As the policy does: back at once, out again only when it is worth it.
        lent = before if before <= lent < before + 8 else lent
        found.append(
            {
                "at": stamp(at_s),
                "lent": lent,
                "borrowed": max(0, lent - 2 * (back // 20 % 3)),
                "service": math.ceil(demand(at_s)),
                "provision": provision,
                "p50": math.ceil(p50),
                "p99": math.ceil(p99),
            }
        )
    return found


def pool(
    name: str,
    now_s: float,
    *,
    reclaiming: bool = False,
    mode: str = "enforce",
    forecast: str = "Fresh",
    moments: int = 288,
    **status: Any,
) -> Object:
    told = history(now_s, moments=moments)
    last = told[-1] if told else {"lent": 0, "borrowed": 0, "service": 0, "provision": 0}
    found: Object = {
        "lentGpus": last["lent"],
        "borrowedGpus": last["borrowed"],
        "serviceGpus": last["service"],
        "provisionGpus": last["provision"],
        "leadTimeSeconds": 1800,
        "caution": 0.993,
        "forecast": {"state": forecast, "at": stamp(now_s - 90), "model": "demand/7"},
        "decision": {
            "verb": "keep",
            "gpus": 0,
            "at": stamp(now_s - 40),
            "reasons": [
                {
                    "code": "HYSTERESIS",
                    "message": "The quantile 0.993 of demand over 30 min leaves 13 GPUs; 12 are lent, "
                    "and less than 4 more would not be worth the move.",
                },
                {
                    "code": "LEAD_TIME",
                    "message": "Cold start 210 s, drain and checkpoint 95 s: 30 min with the margin.",
                },
            ],
        },
        "history": told,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Fresh",
                "message": "all is well",
                "lastTransitionTime": stamp(now_s - 3600),
            }
        ],
    }
    if reclaiming:
        found["decision"] |= {
            "verb": "reclaim",
            "gpus": 8,
            "reasons": [
                {
                    "code": "FORECAST",
                    "message": "In 30 min services need 24 GPUs at the quantile 0.993 (18 at the median): "
                    "8 of the 12 lent GPUs have to be back by then.",
                },
                found["decision"]["reasons"][1],
            ],
        }
        found["reclaiming"] = {
            "gpus": 8,
            "since": stamp(now_s - 60),
            "by": stamp(now_s + 900),
            "victims": ["research/pretrain", "team/sweep-3"],
        }
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "status": found | status,
        "spec": {
            "gpus": 32,
            "mode": mode,
            "leadTime": "30m",
            "services": [
                {
                    "name": "chat",
                    "namespace": "prod",
                    "selector": {"matchLabels": {"app": "chat"}},
                    "capacityPerGpu": 450,
                }
            ],
            "borrowers": [{"system": "Kueue", "queue": "borrowers", "flavor": "lent"}],
        },
    }


def eviction(name: str, at_s: float, phase: Phase = Phase.RESUMED, cause: Cause = Cause.LENDING, **more: Any) -> Object:
    ref = WorkloadRef("batch/v1", "Job", name, f"uid-{name}")
    one = Eviction(
        more.get("namespace", "research"),
        f"{name}-1",
        ref,
        more.get("system", System.KUEUE),
        at_s,
        cause,
        more.get("by", "kopt-reallocation"),
        more.get("for_whom", "prod/chat"),
        more.get("reason", "LendingPool chat needs 8 GPUs by 14:35 for a spike."),
        more.get("gpus", 8000),
        int(at_s * 1000),
        4200,
        at_s - 30,
        more.get("lost", 240.0),
    )
    back = phase in (Phase.RESUMED, Phase.FINISHED)
    outcome = Return(
        phase,
        at_s + 3900 if back else None,
        4200 if back else None,
        more.get("verified", Verified.YES if back else None),
        more.get("message", ""),
    )
    return {**body_of(one), "status": status_of(outcome)}


def staged(name: str, now_s: float, phase: str = "Staging", done: float = 0.37, **status: Any) -> Object:
    total = 2048 * GIB
    progress = {
        "bytes": total,
        "bytesDone": int(done * total),
        "objects": 4096,
        "objectsDone": int(done * 4096),
        "bytesPerSecond": 230 << 20,
        "secondsLeft": (1 - done) * total / (230 << 20),
        "at": stamp(now_s - 3),
    }
    return {
        "metadata": {"name": name, "namespace": "research", "uid": f"uid-{name}"},
        "spec": {"source": f"s3://corpora/{name}", "destination": {"claim": "datasets", "path": name}},
        "status": {
            "phase": phase,
            "progress": progress,
            "attempts": 1,
            "users": [{"kind": "Job", "name": "pretrain", "uid": "u"}],
        }
        | status,
    }


def overview(now_s: float, **more: Any) -> Overview:
    """A cluster with something of everything."""
    pools = [pool("chat", now_s, reclaiming=True), pool("vision", now_s, forecast="Stale", mode="observe")]
    ledger = [
        eviction("pretrain", now_s - 60, Phase.WAITING),
        eviction("sweep-3", now_s - 5 * 3600, gpus=4000),
        eviction(
            "ablation",
            now_s - 9 * 3600,
            cause=Cause.PREEMPTED,
            by="kueue",
            for_whom="prod/urgent-eval",
            reason="Preempted to accommodate a workload (UID: 1) due to prioritization in the ClusterQueue",
            verified=Verified.NO,
            lost=5400.0,
            message="The log goes on at step 3,900.",
        ),
        eviction(
            "notebook",
            now_s - 26 * 3600,
            Phase.GONE,
            Cause.NODE_LOST,
            by="taint manager",
            for_whom="",
            lost=None,
            reason="",
            system=System.NONE,
            gpus=500,
        ),
        eviction("old", now_s - 20 * 86_400, Phase.FINISHED, Cause.DRAINED),
    ]
    data = [
        staged("corpus", now_s),
        staged("weights", now_s, "Ready", 1.0, readyAt=stamp(now_s - 7200)),
        staged(
            "images",
            now_s,
            "Failed",
            0.04,
            reason="Denied",
            attempts=3,
            message="403 from the bucket: the key may not read s3://corpora/images",
        ),
        staged(
            "cache",
            now_s,
            "Staging",
            0.8,
            nodes=[
                {"name": "gpu-7", "phase": "Staging", "bytesDone": 80 * GIB},
                {"name": "gpu-8", "phase": "Failed", "message": "the disk is full"},
            ],
        ),
    ]
    data[3]["spec"]["destination"] = {"nodeCache": {"copies": 2}}
    fields: dict[str, Any] = {
        "cluster": True,
        "now_s": now_s,
        "pools": tuple(map(pool_of, pools)),
        "ledger": tuple(map(entry_of, ledger)),
        "staged": tuple(map(staged_of, data)),
        "switches": switches(now_s),
    }
    return Overview(**fields | more)
