"""Pre-emption: GPU-hours lost to make room for urgent jobs, by policy and number of candidates, on two real job traces.

Every job of the trace runs on a cluster that is nearly full, writes checkpoints by a behaviour drawn for it, and is
pre-emptible; one in 25 submissions is urgent. Candidates are drawn at random from the jobs that run then. kopt sees
what logs would tell of 70 % of the jobs; the oracles see the truth. The policy's numbers were chosen on the first half
of the days; figures are held against targets on the second. Needs KOPT_DATA_DIR.

    python -m benchmarks.preemption [--seeds N] [--workers N]
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.checkpoint_corpus.manifest import RECORDS
from benchmarks.tables import markdown
from kopt.data.jobs.training import read_jobs
from kopt.simulator.preemption.behaviour import Scales, read_manners
from kopt.simulator.preemption.study import (
    BASELINE,
    DAY_S,
    RIVALS,
    Figures,
    Setup,
    figures,
    outcomes,
    study,
    with_sight,
)

POOLS, SEEDS, WORKERS = (4, 8, 12, 16, 24), 4, 2
AT, GOAL, MOST_WAIT_S, MOST_PREEMPTED = 12, 0.5, 300.0, 0.05
BOUND = "oracle-promised"


@dataclass(frozen=True)
class Trace:
    """A file below ``jobs``, the GPUs that it nearly fills from ``warm_days`` on, and the days that are replayed."""

    file: str
    gpus: int
    warm_days: float
    days: float

    def halves(self) -> "dict[str, Trace]":
        half = self.days / 2
        return {
            "first, tuned on": replace(self, days=half),
            "second, held out": replace(self, warm_days=self.warm_days + half, days=half),
        }


TRACES = (
    Trace("philly_first_half.csv.gz", 640, 24, 14),
    Trace("ms_itp_odd_clusters.csv.gz", 448, 28, 21),
)


def setup_of(trace: Trace, folder: Path) -> Setup:
    return Setup(
        read_jobs(folder / trace.file),
        trace.gpus,
        trace.warm_days * DAY_S,
        (trace.warm_days + trace.days) * DAY_S,
        read_manners(RECORDS),
    )


def by_pool(found: Sequence[Figures]) -> str:
    head = (
        "candidates",
        "policy",
        "lost per urgent job",
        "of newest first",
        "lost per pre-emption (95 %)",
        "median",
        "pre-emptions",
        "of jobs started",
        "torn",
        "left to the scheduler (torn)",
        "wait: mean, p95 s",
    )
    return markdown(head, [_row(one, found) for one in found])


def _row(one: Figures, found: Sequence[Figures]) -> tuple[str, ...]:
    base = next(other for other in found if other.pool == one.pool and other.policy == BASELINE)
    return (
        str(one.pool),
        one.policy,
        f"{one.lost_per_ask:.3f}",
        f"{one.lost_per_ask / base.lost_per_ask:.2f}",
        f"{one.lost_mean:.3f} ({one.lost_low:.3f}-{one.lost_high:.3f})",
        f"{one.lost_median:.3f}",
        str(one.rooms),
        f"{100 * one.preempted_share:.1f} %",
        str(one.torn),
        f"{one.native} ({one.torn_native})",
        f"{one.wait_mean_s:.0f}, {one.wait_p95_s:.0f}",
    )


def sensitivity(setup: Setup, seeds: Sequence[int], workers: int) -> str:
    """kopt with 12 candidates where other things hold, as a share of newest first under the same conditions."""
    slow = replace(setup.scales, interval_s=(3600.0, 4 * 3600.0))
    quick = replace(setup.scales, interval_s=(300.0, 900.0))
    cases: list[tuple[str, Setup]] = [
        *((f"{share:.0%} observable", with_sight(setup, observable=share)) for share in (0.3, 0.5, 0.7, 0.9, 1.0)),
        ("60 % of the ends of writes understood", with_sight(setup, done_understood=0.6)),
        ("20 % of ends believed in are none", with_sight(setup, false_done=0.2)),
        ("logs are 20 s late", with_sight(setup, delay_s=20.0)),
        ("1 % of writes not noticed (8 of 700 in the recorded corpus)", with_sight(setup, safe_in_write=0.01)),
        ("no waiting", replace(setup, budget_s=0.0)),
        ("checkpoints every 5-15 minutes", replace(setup, scales=quick)),
        ("checkpoints every 1-4 hours", replace(setup, scales=slow)),
        ("restarts free of charge", replace(setup, scales=Scales(restart_s=(0.1, 0.2)))),
    ]
    rows = []
    for name, case in cases:
        base, ours = study(case, (BASELINE, "kopt"), (AT,), seeds, workers)
        rows.append(
            (
                name,
                f"{ours.lost_per_ask / base.lost_per_ask:.2f}",
                f"{ours.lost_mean / base.lost_mean:.2f}",
                str(ours.torn),
                f"{ours.native / max(1, ours.rooms):.1%}",
                f"{ours.wait_mean_s:.0f}, {ours.wait_p95_s:.0f}",
            )
        )
    head = (
        "12 candidates",
        "lost per urgent job, of newest first",
        "lost per pre-emption, of newest first",
        "torn",
        "left to the scheduler",
        "wait: mean, p95 s",
    )
    return markdown(head, rows)


@dataclass(frozen=True)
class Half:
    """12 candidates on half of the days: newest first, kopt and its floor, with and without waiting; all by seed."""

    name: str
    waiting: dict[str, list[Figures]]
    at_once: dict[str, list[Figures]]


def half_of(name: str, setup: Setup, seeds: Sequence[int], workers: int) -> Half:
    """``[0]`` of each list is over all seeds."""

    def by_policy(case: Setup) -> dict[str, list[Figures]]:
        found = outcomes(case, (BASELINE, "kopt", BOUND), (AT,), seeds, workers)
        return {
            policy: [figures(policy, pool, them) for them in (all_, *([one] for one in all_))]
            for policy, pool, all_ in found
        }

    return Half(name, by_policy(setup), by_policy(replace(setup, budget_s=0.0)))


def by_half(halves: Sequence[Half]) -> str:
    rows = []
    for half in halves:
        for budget, found in (("5 min", half.waiting), ("none", half.at_once)):
            for what in ("lost_mean", "lost_per_ask"):
                base, ours, bound = ([getattr(one, what) for one in found[name]] for name in (BASELINE, "kopt", BOUND))
                rows.append(
                    (
                        half.name,
                        budget,
                        "pre-emption" if what == "lost_mean" else "urgent job",
                        f"{base[0]:.3f}",
                        f"{ours[0]:.3f} ({ours[0] / base[0] - 1:+.0%})",
                        f"{bound[0]:.3f} ({bound[0] / base[0] - 1:+.0%})",
                        ", ".join(f"{mine / its - 1:+.0%}" for mine, its in zip(ours[1:], base[1:], strict=True)),
                    )
                )
    head = ("half", "waiting", "lost per", "newest first", "kopt", "oracle under kopt's promises", "kopt by seed")
    return markdown(head, rows)


def reached(half: Half) -> list[tuple[str, str, str, str]]:
    """Figure, value, target, whether it holds, for kopt with 12 candidates."""
    (ours, *_), (base, *_) = half.waiting["kopt"], half.waiting[BASELINE]
    (at_once, *_), (base_at_once, *_) = half.at_once["kopt"], half.at_once[BASELINE]
    found = (
        ("lost GPU-hours per urgent job, of newest first", ours.lost_per_ask / base.lost_per_ask, GOAL),
        ("lost GPU-hours per pre-emption, of newest first", ours.lost_mean / base.lost_mean, GOAL),
        ("the same without waiting", at_once.lost_mean / base_at_once.lost_mean, 1.0),
        ("added wait, 95 % of them, s", ours.wait_p95_s, MOST_WAIT_S),
        ("pre-emptions of jobs started", ours.preempted_share, MOST_PREEMPTED),
        ("checkpoint writes torn by kopt's choice, with and without waiting", float(ours.torn + at_once.torn), 0.0),
    )
    return [
        (name, f"{value:.3g}", f"≤ {most:g}", "yes" if value <= most + 1e-9 else "NO") for name, value, most in found
    ]


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="draws of behaviours and urgent jobs; half as many by pool"
    )
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes")
    options = parser.parse_args(arguments)
    folder = Path(os.environ.get("KOPT_DATA_DIR", "")) / "jobs"
    if not (folder / TRACES[0].file).exists():
        print("KOPT_DATA_DIR names no folder with jobs: nothing measured")
        return int(os.environ.get("KOPT_REQUIRE_DATA") == "1")
    began, failed = time.perf_counter(), False
    for number, trace in enumerate(TRACES):
        setup = setup_of(trace, folder)
        found = study(setup, tuple(RIVALS), POOLS, range(max(1, options.seeds // 2)), options.workers)
        print(f"### {trace.file}, {trace.gpus} GPUs, {trace.days:g} days; GPU-hours\n\n{by_pool(found)}\n", flush=True)
        halves = [
            half_of(name, setup_of(half, folder), range(options.seeds), options.workers)
            for name, half in trace.halves().items()
        ]
        print(f"{by_half(halves)}\n")
        targets = reached(halves[-1])
        failed |= any(held == "NO" for *_, held in targets)
        print(markdown(("figure", "measured", "target", "held"), targets), flush=True)
        if number == 0:
            print(f"\n### Under other conditions\n\n{sensitivity(setup, range(1), options.workers)}\n")
    print(f"\n{time.perf_counter() - began:.0f} s", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
