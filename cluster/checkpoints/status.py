"""Reads the checkpoint annotations of pods (written by ``agents/logtail/annotator.py``) for the policy.

Pods of one owner write one log (all ranks of a training), and each carries the status of that log. Among recent
statuses, one that is not safe to kill wins over all that are. Figures without an interval or without their model are
ignored.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from kopt.cluster.objects.custom.checkpoint import source_of
from kopt.cluster.workloads.kueue.objects import GpuPod
from kopt.core.times import seconds_or_none
from kopt.core.units import WHOLE_GPU, MilliGpu
from kopt.core.workload.checkpoint import LONGEST_START_S, Estimate, JobState, JobStatus, Member, Source

STATE, SAFE = "kaiwo.ai/checkpoint-state", "kaiwo.ai/checkpoint-safe"
OBSERVED_AT = "kaiwo.ai/checkpoint-observed-at"
LAST_TIME, LAST_STEP = "kaiwo.ai/last-checkpoint-time", "kaiwo.ai/last-checkpoint-step"
RISK, RISK_BETWEEN = "kaiwo.ai/work-at-risk", "kaiwo.ai/work-at-risk-interval"
REASON, MODEL = "kaiwo.ai/checkpoint-reason", "kaiwo.ai/checkpoint-model"
_NEVER_SAFE = (JobState.UNKNOWN, JobState.CKPT_WRITING)
SKEW_S = 60.0
"""Clocks of nodes may be ahead by this much; later observations are ignored."""
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class ReportedStatus:
    """The status of a job on one of its pods, when it was written, and whether it is a claim of its owner."""

    status: JobStatus
    at_s: float
    claimed: bool = False


def members_of(gpus: int, pods: Iterable[GpuPod], now_s: float, stale_s: float) -> tuple[Member, ...]:
    """The members of a gang of ``gpus`` milli-GPU, one for each log. GPUs without observed pods are a member without a
    status; if the pods have more GPUs than the gang, they become one member with the worst status. Pods with shares
    have equal parts of what no other pod has."""
    members = []
    ordered = sorted(_with_shares(gpus, list(pods)), key=lambda pod: (pod.owner_uid, pod.uid))
    for _, group in groupby(ordered, key=lambda pod: pod.owner_uid):
        own = list(group)
        reported = bounded(latest_status([pod.annotations for pod in own], now_s, stale_s), gpus, own, now_s)
        amount = MilliGpu(sum(pod.gpus for pod in own))
        if amount or reported:
            members.append(member(amount, reported))
    observed_gpus = sum(item.gpus for item in members)
    if observed_gpus > gpus:
        worst = next((item for item in members if item.status is None or not item.status.safe), members[0])
        return (replace(worst, gpus=MilliGpu(gpus)),)
    return (*members, *([Member(MilliGpu(gpus - observed_gpus))] if observed_gpus < gpus or not members else []))


def _with_shares(gpus: int, pods: Sequence[GpuPod]) -> list[GpuPod]:
    number = sum(pod.shares for pod in pods)
    rest = max(0, gpus - sum(pod.gpus for pod in pods if not pod.shares))
    parts = iter([rest // number + (at < rest % number) for at in range(number)])
    return [replace(pod, gpus=next(parts)) if pod.shares else pod for pod in pods]


def member(gpus: MilliGpu, reported: ReportedStatus | None, node: str = "") -> Member:
    """The pods of one log with its status."""
    return (
        Member(gpus, None, node=node)
        if reported is None
        else Member(gpus, reported.status, reported.at_s, node, reported.claimed)
    )


def recent_status(annotations: Iterable[Mapping[str, Any]], now_s: float, stale_s: float) -> ReportedStatus | None:
    """The status that counts among annotations as objects have them; None where none is younger than ``stale_s``."""
    texts = [{name: value for name, value in each.items() if isinstance(value, str)} for each in annotations]
    reported = latest_status(texts, now_s, stale_s)
    return None if reported is None or now_s - reported.at_s > stale_s else reported


def latest_status(annotations: Sequence[Mapping[str, str]], now_s: float, stale_s: float) -> ReportedStatus | None:
    """The status that counts among those of several pods of one job."""
    ordered = sorted(
        (item for item in map(status_from, annotations) if item and item.at_s <= now_s + SKEW_S),
        key=lambda item: item.at_s,
    )
    lately = [item for item in ordered if now_s - item.at_s <= stale_s]
    unsafe = [item for item in lately if not item.status.safe]
    matches = unsafe or lately or ordered
    return matches[-1] if matches else None


def bounded(reported: ReportedStatus | None, gpus: int, pods: Sequence[GpuPod], now_s: float) -> ReportedStatus | None:
    """The status with its work at risk bounded by what ``gpus`` milli-GPU can have computed since the first pod
    started, plus a restart. Work of earlier pods is lost or saved already."""
    started = [pod.started_s for pod in pods if pod.started_s is not None]
    risk = reported.status.work_at_risk_gpu_seconds if reported else None
    if reported is None or risk is None or not started:
        return reported
    most = gpus / WHOLE_GPU * (max(0.0, now_s - min(started)) + LONGEST_START_S)
    if risk.high <= most:
        return reported
    less = Estimate(min(risk.value, most), min(risk.low, most), most)
    return replace(reported, status=replace(reported.status, work_at_risk_gpu_seconds=less))


def status_from(annotations: Mapping[str, str]) -> ReportedStatus | None:
    """The status in a pod's annotations; None without a timestamp, as it may be outdated."""
    at_s, state_name = seconds_or_none(annotations.get(OBSERVED_AT, "")), annotations.get(STATE, "")
    if at_s is None:
        return None
    state = JobState(state_name) if state_name in tuple(JobState) else JobState.UNKNOWN
    last_s, step = seconds_or_none(annotations.get(LAST_TIME, "")), annotations.get(LAST_STEP, "")
    if last_s is not None and last_s > at_s + SKEW_S:
        last_s = None
    counted = _NUMBER.fullmatch(step) is not None
    evidence = last_s is not None or counted
    safe = annotations.get(SAFE) == "true" and evidence and state not in _NEVER_SAFE
    return ReportedStatus(
        JobStatus(
            state,
            safe,
            evidence,
            confidence=1.0,
            last_durable_step=int(step) if counted else None,
            last_durable_at_s=last_s,
            seconds_since_durable=None if last_s is None else max(0.0, at_s - last_s),
            work_at_risk_gpu_seconds=_risk(annotations),
            reason=annotations.get(REASON, ""),
        ),
        at_s,
        source_of(annotations) is Source.CLAIM,
    )


def grounds(annotations: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The model and interval behind a gang's work at risk, from its pods' annotations, and its source: a claim if any
    of them is one."""
    every = list(annotations)
    result: Mapping[str, str] = next((item for item in every if item.get(MODEL)), {})
    sources = {source for item in every if (source := source_of(item))}
    whose = {"source": (Source.CLAIM if Source.CLAIM in sources else Source.AGENT).value} if sources else {}
    return {"model": result.get(MODEL, ""), "workAtRisk": result.get(RISK_BETWEEN, ""), **whose}


def _risk(annotations: Mapping[str, str]) -> Estimate | None:
    low, _, high = annotations.get(RISK_BETWEEN, "").partition("-")
    try:
        value = float(annotations[RISK])
        if not math.isfinite(value):
            return None
        # The three figures are rounded independently.
        return Estimate(value, min(float(low), value), max(float(high), value)) if annotations.get(MODEL) else None
    except (KeyError, ValueError):
        return None
