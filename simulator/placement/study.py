"""Several policies over several seeds: replays side by side and their means."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from enum import StrEnum

from kopt.core.scheduling.cluster import Node
from kopt.data.jobs.openb import TracePod
from kopt.policies.placement.policies import LEARNS
from kopt.policies.placement.typical import TypicalPods
from kopt.simulator.placement.load import arrivals, capacity_milli
from kopt.simulator.placement.replay import Replay, replay
from kopt.simulator.workers import worker_processes

Advance = Callable[[int, int], None]


class Expectation(StrEnum):
    """What a policy knows of the pods to come before the first one arrives."""

    ARRIVALS = "arrivals"
    """Nothing: it learns from the arrivals so far."""
    TRACE = "trace"
    """How often each kind of pod occurs in the trace, as the paper gives it to its policy; not their order."""


@dataclass(frozen=True)
class Scenario:
    """A fleet, a trace, and how much of it arrives: ``load`` times the fleet's GPUs."""

    nodes: tuple[Node, ...]
    pods: tuple[TracePod, ...]
    load: float = 1.3


@dataclass(frozen=True)
class Run:
    """One replay to make. Without ``expects``, policies in ``LEARNS`` learn from arrivals; others have the trace."""

    policy: str
    seed: int
    expects: Expectation | None = None


def simulate(scenario: Scenario, run: Run) -> Replay:
    """One replay. Raises KeyError for an unknown policy, ValueError for a load that the trace cannot make."""
    requests = arrivals(scenario.pods, capacity_milli(scenario.nodes), scenario.load, run.seed)
    expects = run.expects or (Expectation.ARRIVALS if run.policy in LEARNS else Expectation.TRACE)
    typical = TypicalPods.learn(pod.request for pod in scenario.pods) if expects is Expectation.TRACE else None
    return replay(scenario.nodes, requests, run.policy, run.seed, typical)


def study(
    scenario: Scenario, runs: Sequence[Run], workers: int | None = None, progress: Advance | None = None
) -> tuple[Replay, ...]:
    """All replays, in the order of ``runs``, in so many processes (default: one per core)."""
    workers = min(workers or os.cpu_count() or 1, len(runs))
    replays_by_index: dict[int, Replay] = {}
    for index, done in _each(scenario, runs, workers):
        replays_by_index[index] = done
        if progress:
            progress(len(replays_by_index), len(runs))
    return tuple(replays_by_index[index] for index in range(len(runs)))


def _each(scenario: Scenario, runs: Sequence[Run], workers: int) -> Iterator[tuple[int, Replay]]:
    if workers <= 1:
        yield from ((index, simulate(scenario, run)) for index, run in enumerate(runs))
        return
    with worker_processes(workers) as pool:
        jobs = {pool.submit(simulate, scenario, run): index for index, run in enumerate(runs)}
        for job in as_completed(jobs):
            yield jobs[job], job.result()
