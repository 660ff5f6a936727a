"""Runs of jobs from a Prometheus that scrapes GPU exporters: when pods first and last had GPUs, and how many.

Pods of one job are known by the endings that controllers give their names, so that they are one run on all of their
GPUs. Pods of a Deployment are services and no runs. What had GPUs as the window begins has no known start and is left
out; what has them at its end goes on. How a pod ended is not in these series: an eviction counts as an end there, so
the ledger of a cluster (``kopt controller runs``) is the better source where it is there.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kopt.core.workload.run_time import JobKind, JobRun
from kopt.data.demand.prometheus import CHUNK_POINTS, Server, rows_of
from kopt.formats.gpu_metrics import exporters

STEP_S = 60
_SERIES = ("DCGM_FI_DEV_FB_USED", "gpu_used_vram", "amd_gpu_used_vram", "kopt_gpu_held")
_LABELS = "namespace,pod,exported_namespace,exported_pod"
_DEVICES = f"{_LABELS},UUID,gpu,gpu_uuid,gpu_id,Hostname,hostname,GPU_I_ID,gpu_partition_id,node,uuid,partition"
_LONGEST_GAP_S = 300
"""A scrape that fails is no end."""
_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]{5}"
"""What Kubernetes draws the last letters of generated names from."""
_SERVICE = re.compile(rf"-[bcdfghjklmnpqrstvwxz2456789]{{8,10}}-{_RANDOM}$")
_ENDING = re.compile(rf"-{_RANDOM}$")
_INDEX = re.compile(r"-(?:(?:master|worker|launcher|leader|chief|ps)-)?(\d+)$")
_SERIAL = re.compile(r"(?:[-.]?\d+|-[0-9a-f]{6,})+$")
"""What is added to the name of what runs again and again."""


@dataclass(frozen=True)
class PrometheusRuns:
    """Runs by their start. ``begun_before`` had GPUs when the window began; ``services`` are pods of Deployments."""

    runs: tuple[JobRun, ...]
    begun_before: int = 0
    services: int = 0


@dataclass
class _Span:
    """GPUs of one pod from its first to its last moment with some."""

    pod: str
    first_s: float
    last_s: float
    gpus: int


def read_gpu_runs(server: Server, since_s: float, now_s: float, namespace: str = "") -> PrometheusRuns:
    """The last ``since_s`` seconds. Raises PrometheusError where the server does not answer with such series."""
    # On whole steps: the same run has the same start, and so the same name, whenever it is read.
    begin_s = (now_s - since_s) // STEP_S * STEP_S
    spans: dict[tuple[str, str], list[_Span]] = defaultdict(list)
    for name in _SERIES:
        for (space, pod), points in _pods(server, name, begin_s, now_s):
            if pod and namespace in ("", space):
                _add(spans[space, pod], pod, points)
    services = [key for key in spans if _SERVICE.search(key[1])]
    by_job: dict[tuple[str, str], list[_Span]] = defaultdict(list)
    for (space, pod), several in spans.items():
        if (space, pod) not in services:
            by_job[space, _ENDING.sub("", pod)] += several
    before, runs = 0, []
    for (space, name), several in _indexed_together(by_job).items():
        for together in _overlapping(several):
            if together[0].first_s < begin_s + _LONGEST_GAP_S:
                before += 1
            else:
                runs.append(_run(space, name, together, now_s))
    return PrometheusRuns(tuple(sorted(runs, key=lambda run: (run.started_s, run.job))), before, len(services))


def _add(spans: list[_Span], pod: str, points: list[tuple[float, float]]) -> None:
    """Points of one pod, by time; a longer silence ends a span."""
    for at_s, count in points:
        if spans and at_s - spans[-1].last_s <= _LONGEST_GAP_S:
            spans[-1].last_s, spans[-1].gpus = max(at_s, spans[-1].last_s), max(int(count), spans[-1].gpus)
        else:
            spans.append(_Span(pod, at_s, at_s, int(count)))


def _indexed_together(by_job: Mapping[tuple[str, str], list[_Span]]) -> Mapping[tuple[str, str], list[_Span]]:
    """Pods that differ in an index from 0 and began together are one job: jobs of one series begin one by one."""
    families: dict[tuple[str, str], dict[int, tuple[str, str]]] = defaultdict(dict)
    for space, name in by_job:
        if match := _INDEX.search(name):
            families[space, name[: match.start()]].setdefault(int(match[1]), (space, name))
    result = dict(by_job)
    for key, members in families.items():
        starts = [by_job[member][0].first_s for member in members.values()]
        contiguous = sorted(members) == list(range(len(members)))
        if len(members) > 1 and contiguous and max(starts) - min(starts) <= _LONGEST_GAP_S:
            result[key] = [*result.get(key, ()), *(span for member in members.values() for span in result.pop(member))]
    return result


def _overlapping(spans: list[_Span]) -> Iterator[list[_Span]]:
    """Spans that overlap, or follow each other at once, by time."""
    together: list[_Span] = []
    end_s = float("-inf")
    for span in sorted(spans, key=lambda each: each.first_s):
        if together and span.first_s - end_s > _LONGEST_GAP_S:
            yield together
            together = []
        together.append(span)
        end_s = span.last_s if len(together) == 1 else max(end_s, span.last_s)
    if together:
        yield together


def _run(namespace: str, name: str, spans: list[_Span], now_s: float) -> JobRun:
    gpus: dict[str, int] = {}
    for span in spans:
        gpus[span.pod] = max(span.gpus, gpus.get(span.pod, 0))
    first_s, last_s = spans[0].first_s, max(span.last_s for span in spans)
    kind = JobKind(namespace, sum(gpus.values()), _SERIAL.sub("", name) or name)
    goes_on = now_s - last_s <= _LONGEST_GAP_S
    return JobRun(f"{namespace}/{name}/{first_s:.0f}", kind, first_s, None if goes_on else last_s)


def _pods(
    server: Server, name: str, begin_s: float, now_s: float
) -> Iterator[tuple[tuple[str, str], list[tuple[float, float]]]]:
    """GPUs of each pod over time, in chunks that Prometheus answers. Every sample counts at its own minute."""
    query = f"count by ({_LABELS}) (max by ({_DEVICES}) (max_over_time({name}[{STEP_S}s])))"
    at_s, chunk_s = begin_s, CHUNK_POINTS * STEP_S
    while at_s < now_s:
        end_s = min(now_s, at_s + chunk_s)
        for labels, points in rows_of(server.query_range(query, at_s, end_s, STEP_S)):
            if points:
                yield exporters.pod_of(labels), points
        at_s = end_s + STEP_S
