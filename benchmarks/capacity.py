"""The GPUs that pools need in weeks to come: fits the forecast, and tests each machine by the others.

Job logs in the Standard Workload Format of the Parallel Workloads Archive (Feitelson et al.), years long, stand for
pools: of a machine as a whole, and of each of its users, groups and queues with work in most weeks. What is demanded in
an hour is what runs and what waits, as ``kopt controller queues`` reports it. Rivals: the last week with the pool's own
changes over the same span (random walk), and the quantiles of its own past. Prints Markdown, and with ``--fit`` the
constants of ``policies.capacity.forecast``.

    python -m benchmarks.capacity CTC-SP2-1996-3.1-cln.swf.gz HPC2N-2002-2.2-cln.swf.gz [--fit]
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.tables import markdown
from kopt.data.jobs.training import open_text
from kopt.policies.capacity.forecast import LEAST_WEEKS, PRIOR_WEEKS, QUANTILES, level, weekly_need

HOUR_S, LEAST_JOBS, LEAST_PER_MACHINE, BUSY = 3600.0, 300, 20, 0.7
HORIZONS = (1, 2, 4, 8, 13, 26)
FORGETTING = (0.05, 0.1, 0.2, 0.4, 0.6, 1.0)
Floats = npt.NDArray[np.float64]
Quantiles = Callable[[Sequence[float], int], Sequence[float]]
"""Of what is needed so many weeks after these."""


@dataclass(frozen=True)
class Job:
    """Times in seconds; ``owners`` are its user, group and queue."""

    submit_s: float
    end_s: float
    processors: int
    owners: tuple[str, ...]


@dataclass(frozen=True)
class Pool:
    """Logarithms of what each week needed."""

    machine: str
    name: str
    logs: tuple[float, ...]


def read_swf(path: Path) -> list[Job]:
    """Jobs that ran. Fields: 2 submission, 3 wait, 4 run time, 5 and 8 processors, 12 user, 13 group, 15 queue."""
    jobs = []
    with open_text(path) as file:
        for line in file:
            fields = line.split()
            if not fields or fields[0].startswith(";"):
                continue
            submit, wait, run = (max(0.0, float(value)) for value in fields[1:4])
            processors = int(fields[4]) if int(fields[4]) > 0 else int(fields[7])
            if run > 0 and processors > 0:
                owners = (f"user {fields[11]}", f"group {fields[12]}", f"queue {fields[14]}")
                jobs.append(Job(submit, submit + wait + run, processors, owners))
    return jobs


def hourly(jobs: Sequence[Job], start_s: float, end_s: float) -> Floats:
    """Processors demanded, the mean of each hour."""
    hours = int((end_s - start_s) // HOUR_S)
    # Each job adds its processors from one instant to another: second differences of the integral over hours.
    edges = np.zeros(hours + 3)
    for at_s, sign in ((0, 1.0), (1, -1.0)):
        times = np.array([(job.end_s if at_s else job.submit_s) - start_s for job in jobs]) / HOUR_S
        times = np.clip(times, 0, hours)
        amount = sign * np.array([float(job.processors) for job in jobs])
        hour = times.astype(int)
        np.add.at(edges, hour, amount * (1 - (times - hour)))
        np.add.at(edges, hour + 1, amount * (times - hour))
    return np.cumsum(edges)[:hours]


def pools_of(machine: str, jobs: Sequence[Job]) -> list[Pool]:
    by_owner: defaultdict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        for owner in {"all", *job.owners}:
            by_owner[owner].append(job)
    start_s, end_s = min(job.submit_s for job in jobs), max(job.submit_s for job in jobs)
    pools = []
    for owner, own in sorted(by_owner.items()):
        if len(own) < LEAST_JOBS:
            continue
        needs = [need or 0.0 for need in weekly_need(hourly(own, start_s, end_s).tolist())]
        busy = sum(need > 0 for need in needs) / max(1, len(needs))
        if len(needs) >= LEAST_PER_MACHINE and busy >= BUSY:
            pools.append(Pool(machine, owner, tuple(np.log1p(needs))))
    return pools


def change_of(logs: Sequence[float], prior: float) -> float:
    changes = np.abs(np.diff(logs))
    return float((changes.sum() + prior * PRIOR_WEEKS) / (len(changes) + PRIOR_WEEKS))


def prior_of(pools: Sequence[Pool]) -> float:
    return float(np.mean([np.abs(np.diff(pool.logs)).mean() for pool in pools]))


def origins(pool: Pool, weeks: int) -> Iterator[tuple[Sequence[float], float]]:
    """What was known, and what came ``weeks`` later."""
    for origin in range(LEAST_WEEKS, len(pool.logs) - weeks + 1):
        yield pool.logs[:origin], pool.logs[origin + weeks - 1]


def fitted_steps(pools: Sequence[Pool], weeks: int, forgetting: float, prior: float) -> list[float]:
    """Quantiles over all pools and origins; a pool counts by the root of its number of origins."""
    rows = [
        ((came - level(known, forgetting)) / change_of(known, prior), index)
        for index, pool in enumerate(pools)
        for known, came in origins(pool, weeks)
    ]
    per_pool = Counter(index for _, index in rows)
    steps = np.array([step for step, _ in rows])
    weights = np.array([per_pool[index] ** -0.5 for _, index in rows])
    order = np.argsort(steps)
    share = np.cumsum(weights[order]) / weights.sum()
    return [float(steps[order][min(np.searchsorted(share, level_), len(steps) - 1)]) for level_ in QUANTILES]


def loss(quantiles: Sequence[float], came: float) -> float:
    """The mean pinball loss of the logarithm."""
    return float(
        np.mean([max(q * (came - at), (q - 1) * (came - at)) for q, at in zip(QUANTILES, quantiles, strict=True)])
    )


@dataclass(frozen=True)
class Score:
    """``loss`` of the logarithm; ``covered`` by the 5-95 % interval, and ``enough``: below the 90 % quantile."""

    loss: float
    covered: float
    enough: float


def score(pools: Sequence[Pool], weeks: int, rule: Quantiles) -> Score:
    rows = []
    for pool in pools:
        for known, came in origins(pool, weeks):
            quantiles = rule(known, weeks)
            rows.append((loss(quantiles, came), quantiles[0] <= came <= quantiles[-1], came <= quantiles[4]))
    return Score(*(float(value) for value in np.mean(np.array(rows, dtype=float), axis=0)))


def own_past(known: Sequence[float], weeks: int) -> Sequence[float]:
    return [float(value) for value in np.quantile(known, QUANTILES)]


def random_walk(known: Sequence[float], weeks: int) -> Sequence[float]:
    values = np.array(known)
    changes = values[weeks:] - values[:-weeks] if len(values) > weeks + 2 else np.diff(values) * np.sqrt(weeks)
    return [float(values[-1] + value) for value in np.quantile(changes, QUANTILES)]


def ours(forgetting: float, steps: Sequence[float], prior: float) -> Quantiles:
    def quantiles(known: Sequence[float], weeks: int) -> Sequence[float]:
        middle, change = level(known, forgetting), change_of(known, prior)
        return [middle + step * change for step in steps]

    return quantiles


def chosen_forgetting(pools: Sequence[Pool], weeks: int) -> float:
    """The one with the least loss over machines, each of which is forecast by the others."""

    def held_out(forgetting: float) -> float:
        losses = []
        for machine in {pool.machine for pool in pools}:
            others = [pool for pool in pools if pool.machine != machine]
            prior = prior_of(others)
            rule = ours(forgetting, fitted_steps(others, weeks, forgetting, prior), prior)
            losses.append(score([pool for pool in pools if pool.machine == machine], weeks, rule).loss)
        return float(np.mean(losses))

    return min(FORGETTING, key=held_out)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path, nargs="+", help="job logs (SWF, gzipped or not), at least three machines")
    parser.add_argument("--fit", action="store_true", help="print the constants, fitted on all machines")
    options = parser.parse_args(arguments)
    pools = [pool for path in options.logs for pool in pools_of(path.name.partition("-")[0], read_swf(path))]
    machines = sorted({pool.machine for pool in pools})
    rows = []
    for weeks in HORIZONS:
        for machine in machines:
            others = [pool for pool in pools if pool.machine != machine]
            own = [pool for pool in pools if pool.machine == machine and len(pool.logs) >= LEAST_WEEKS + weeks]
            # Of the machine that is forecast nothing was known when these were chosen.
            forgetting, prior = chosen_forgetting(others, weeks), prior_of(others)
            rules = {
                "kopt": ours(forgetting, fitted_steps(others, weeks, forgetting, prior), prior),
                "random walk": random_walk,
                "its own past": own_past,
            }
            for name, rule in rules.items():
                result = score(own, weeks, rule)
                figures = [f"{result.loss:.3f}", f"{result.covered:.0%}", f"{result.enough:.0%}"]
                rows.append([str(weeks), machine, str(len(own)), name, *figures])
        print(f"{weeks} weeks ahead: done", file=sys.stderr, flush=True)
    print(markdown(["weeks ahead", "machine", "pools", "forecast", "loss", "in 5-95 %", "below P90"], rows))
    if options.fit:
        prior = prior_of(pools)
        print(f"\nPRIOR_CHANGE = {prior:.3f}")
        for weeks in HORIZONS:
            forgetting = chosen_forgetting(pools, weeks)
            steps = ", ".join(f"{step:.3f}" for step in fitted_steps(pools, weeks, forgetting, prior))
            print(f"    Horizon({weeks}, {forgetting}, ({steps})),")
    return 0


if __name__ == "__main__":
    sys.exit(main())
