"""What a test has shown, from the log of its rank 0; anything that is not whole is a failed pair, with the reason."""

import re
from collections.abc import Sequence

from kopt.controllers.pairwise.spec import Benchmark
from kopt.core.hardware.bandwidth import BandwidthError, Collective, collective
from kopt.core.hardware.collectives import CollectiveLog, CollectiveRun
from kopt.core.hardware.pairwise import Health, MeasuredPair, MeasuredPoint, Pair
from kopt.formats import topology
from kopt.policies.pairwise.fit import fit

_VERSION = re.compile(r"\b(NCCL|RCCL)(?: library)? version\s*:?\s+v?(\d+(?:\.\d+){1,3})")
_LIBRARY = re.compile(r"\bnccl-library=(\d{4,6})\b")
_MOST_POINTS = 64


def measured(log: str, benchmark: Benchmark, pair: Pair, at_s: float) -> list[MeasuredPair]:
    """One result per collective; never raises."""
    try:
        result = topology.parse(log)
        if not isinstance(result, CollectiveLog):
            raise topology.FormatError("the log is not one of nccl-tests or rccl-tests")
        runs = _by_collective(result.runs, benchmark.collectives)
    except (topology.FormatError, BandwidthError) as error:
        return failures(benchmark, pair, at_s, str(error), software_of(log))
    return [
        _measured_pair(runs.get(collective), collective, benchmark, pair, at_s, software_of(log))
        for collective in benchmark.collectives
    ]


def failures(benchmark: Benchmark, pair: Pair, at_s: float, why: str, software: str = "") -> list[MeasuredPair]:
    """The results of a test that showed nothing."""
    return [
        MeasuredPair(
            pair, benchmark.gpus_per_node, collective, at_s, software=software, health=Health.FAILED, reason=why[:1024]
        )
        for collective in benchmark.collectives
    ]


def software_of(log: str) -> str:
    """``nccl 2.27.3``; empty where the log does not say."""
    if match := _VERSION.search(log):
        return f"{match[1].lower()} {match[2]}"
    if library := _LIBRARY.search(log):
        number = int(library[1])
        return f"nccl {number // 10_000}.{number // 100 % 100}.{number % 100}"
    return ""


def _by_collective(runs: Sequence[CollectiveRun], requested: Sequence[Collective]) -> dict[Collective, CollectiveRun]:
    """A run that does not say what it was is the only one that was asked for."""
    collective_runs = {}
    for run in runs:
        if not run.collective and (len(runs) > 1 or len(requested) > 1):
            raise topology.FormatError("one of several runs does not name its collective")
        collective_runs[collective(run.collective) if run.collective else requested[0]] = run
    return collective_runs


def _measured_pair(
    run: CollectiveRun | None, what: Collective, benchmark: Benchmark, pair: Pair, at_s: float, software: str
) -> MeasuredPair:
    ranks = benchmark.gpus
    why, points, line = "", _points(run), None
    if run is None:
        why = f"the log has no run of {what}"
    elif len(run.ranks) != ranks or run.hosts != 2:
        why = f"{len(run.ranks)} ranks on {run.hosts} hosts ran, not {ranks} on 2"
    elif wrong := sum(row.wrong or 0 for row in run.rows):
        why = f"{wrong} values of {what} were wrong"
    else:
        line = fit([(float(point.bytes), point.latency_us) for point in points])
        why = "" if line else f"the times of {what} do not grow with the size"
    if line is None:
        return MeasuredPair(
            pair, benchmark.gpus_per_node, what, at_s, software=software, health=Health.FAILED, reason=why
        )
    beta = line.gigabytes_per_s(what.bus_factor(ranks))
    return MeasuredPair(
        pair, benchmark.gpus_per_node, what, at_s, points, round(line.alpha_us, 3), round(beta, 3), software
    )


def _points(run: CollectiveRun | None) -> tuple[MeasuredPoint, ...]:
    """By size: out of place, or in place where there is nothing else."""
    if run is None:
        return ()
    by_size = {int(row.bytes): row.latency_us for row in run.rows if row.in_place}
    by_size |= {int(row.bytes): row.latency_us for row in run.rows if not row.in_place}
    return tuple([MeasuredPoint(size, by_size[size]) for size in sorted(by_size)][-_MOST_POINTS:])
