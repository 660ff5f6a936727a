"""Spot or on-demand capacity: what advice and plans pay on recorded availability, beside rivals and an oracle.

Traces: github.com/skypilot-org/spot-traces (221da1a), a clone of which is named on the command line; they come with
"Can't Be Late" (Wu et al., NSDI 2024), whose policy Uniform Progress is a rival here, written after the paper. A gang
has its capacity while all of its nodes have. Runs start at random times of the last two thirds of a trace;
interruptions and outages are counted in what came before, as a user would have counted them. Runs save every half hour
and lose what came since; new capacity computes after ``RESTART_S``. The oracle knows the trace and saves just before it
is interrupted, so that nobody can be cheaper. Savings are shares of what on-demand capacity alone would cost.

    python -m benchmarks spot FOLDER
"""

import json
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.tables import markdown
from kopt.policies.cost.spot import SpotQuestion, spot_advice
from kopt.policies.cost.spot_plan import Capacity, SpotPlan, SpotRun
from kopt.policies.cost.spot_rates import Spell, rates_of

RESTART_S, SAVE_S = 600.0, 1800.0
RATIOS = (0.3, 0.6, 0.85)
TIGHTNESS = (0.6, 0.8, 0.9)
"""Work over the time until the deadline."""
RUNS, SEED = 8, 7
_HOUR_S = 3600.0
_CHOSEN_ON = "aws-10-26-2022"
"""What was looked at while the plan was made."""
_LENGTHS_S = (24 * _HOUR_S, 72 * _HOUR_S)


@dataclass(frozen=True)
class Trace:
    """Whether capacity was there, every ``gap_s``."""

    name: str
    gap_s: float
    available: tuple[bool, ...]

    def spells(self, until: int) -> tuple[list[Spell], list[Spell]]:
        """How long capacity was there, and away, before an index; the last one is not seen to its end."""
        spells: tuple[list[Spell], list[Spell]] = ([], [])
        start = 0
        for i in range(1, until + 1):
            if i == until or self.available[i] != self.available[start]:
                spells[not self.available[start]].append(Spell((i - start) * self.gap_s, i < until))
                start = i
        return spells


@dataclass
class Run:
    """A run as it goes: what it has left to compute, and what it has paid in hours of on-demand capacity."""

    trace: Trace
    start: int
    work_s: float
    deadline_s: float
    price_ratio: float
    held: Capacity = Capacity.NONE
    paid_hours: float = 0.0
    elapsed_s: float = 0.0
    since_save_s: float = 0.0
    starting_s: float = 0.0
    total_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.total_s = self.work_s

    @property
    def available(self) -> bool:
        return self.trace.available[self.start + round(self.elapsed_s / self.trace.gap_s)]

    @property
    def age_s(self) -> float:
        """For how long capacity has been there, or away."""
        now = first = self.start + round(self.elapsed_s / self.trace.gap_s)
        while first > 0 and self.trace.available[first - 1] == self.trace.available[now]:
            first -= 1
        return (now - first) * self.trace.gap_s

    @property
    def left_s(self) -> float:
        return self.deadline_s - self.elapsed_s

    @property
    def cornered(self) -> bool:
        """Whether on-demand capacity is needed from now on to be in time, whatever happens in one more interval."""
        lost = self.since_save_s if self.held is Capacity.SPOT else 0.0
        return self.work_s + lost + RESTART_S > self.left_s - 2 * self.trace.gap_s

    def step(self, choice: Capacity) -> None:
        """Compute on ``choice`` until the next point of the trace."""
        if choice is not self.held:
            self.since_save_s, self.starting_s = 0.0, RESTART_S
        self.held = choice
        gap_s = self.trace.gap_s
        self.elapsed_s += gap_s
        if choice is Capacity.NONE:
            return
        waits_s = min(self.starting_s, gap_s)
        self.starting_s -= waits_s
        computes_s = min(gap_s - waits_s, self.work_s)
        self.work_s -= computes_s
        self.since_save_s = (self.since_save_s + computes_s) % SAVE_S
        price = self.price_ratio if choice is Capacity.SPOT else 1.0
        self.paid_hours += price * (waits_s + computes_s) / _HOUR_S
        if self.work_s > 0 and choice is Capacity.SPOT and not self.available:
            self.work_s += self.since_save_s
            self.since_save_s, self.held = 0.0, Capacity.NONE


Policy = Callable[[Run], Capacity]


def greedy(run: Run) -> Capacity:
    """Spot capacity while it is there, on-demand capacity once there is no time left to wait."""
    if run.held is Capacity.ON_DEMAND or run.cornered:
        return Capacity.ON_DEMAND
    return Capacity.SPOT if run.available else Capacity.NONE


def uniform_progress(run: Run) -> Capacity:
    """Wu et al. (NSDI 2024), section 4: keep up with uniform progress towards the deadline, by on-demand capacity where
    there is no spot capacity; leave it once the progress is two changeovers ahead."""
    if run.cornered:
        return Capacity.ON_DEMAND
    expected_s = run.elapsed_s * run.total_s / run.deadline_s
    ahead_s = run.total_s - run.work_s - expected_s
    if run.held is Capacity.SPOT and run.available:
        return Capacity.SPOT
    if run.held is Capacity.ON_DEMAND:
        if ahead_s < 2 * RESTART_S:
            return Capacity.ON_DEMAND
        return Capacity.SPOT if run.available else Capacity.NONE
    if run.available:
        return Capacity.SPOT
    return Capacity.ON_DEMAND if ahead_s < 0 else Capacity.NONE


def planned(plan: SpotPlan) -> Policy:
    def choose(run: Run) -> Capacity:
        if run.cornered:
            return Capacity.ON_DEMAND
        left_s = run.left_s - run.trace.gap_s
        return plan.choose(left_s, run.work_s, run.held, available=run.available, age_s=run.age_s)

    return choose


def hours_of(policy: Policy, run: Run) -> float:
    """What it pays. Raises AssertionError where it is late by more than an interval."""
    while run.work_s > 0:
        assert run.left_s > -2 * run.trace.gap_s, f"{policy}: late"
        choice = policy(run)
        run.step(Capacity.NONE if choice is Capacity.SPOT and not run.available else choice)
    return run.paid_hours


def oracle_hours(run: Run) -> float:
    """The cheapest that anybody could pay who knows the trace, in whole intervals; nothing is ever lost."""
    gap_s = run.trace.gap_s
    ticks, restart = int(run.deadline_s / gap_s), round(RESTART_S / gap_s)
    work = np.arange(ticks + 1)
    never = 1e12
    later = np.full((3, ticks + 1), never)
    later[:, 0] = 0.0
    for tick in reversed(range(ticks)):
        there = run.trace.available[run.start + tick]
        now = np.empty_like(later)
        for held in range(3):
            options = [later[0]]
            for capacity, price in ((1, run.price_ratio), (2, 1.0)):
                if capacity == 1 and not there:
                    continue
                left = work + (0 if held == capacity else restart) - 1
                options.append(price + np.where(left > ticks, never, later[capacity][np.clip(left, 0, ticks)]))
            now[held] = np.minimum(np.min(options, axis=0), never)
        now[:, 0] = 0.0
        later = now
    return float(later[0][int(run.work_s / gap_s)]) * gap_s / _HOUR_S


def traces_of(folder: Path) -> Iterator[Trace]:
    """GPU capacity alone."""
    for path in sorted(folder.glob("*/*-node/*/*.json")):
        if not any(gpu in path.stem for gpu in ("v100", "k80")):
            continue
        document = json.loads(path.read_text(encoding="utf-8"))
        nodes = int(path.parent.parent.name.partition("-")[0])
        data = tuple(value >= nodes for value in document["data"])
        name = f"{path.parent.parent.parent.name[:5]} {nodes} {path.parent.name} {path.stem}"
        gap_s = float(document["metadata"]["gap_seconds"])
        # Half a minute is finer than a run starts in: intervals of five minutes at least.
        every = max(1, round(300 / gap_s))
        yield Trace(name, gap_s * every, tuple(all(data[i : i + every]) for i in range(0, len(data), every)))


def main(arguments: Sequence[str] = ()) -> int:
    if not arguments or not Path(arguments[0]).is_dir():
        print("give the folder of a clone of github.com/skypilot-org/spot-traces")
        return 1
    rng = random.Random(SEED)
    shares: dict[tuple[str, float, str], list[tuple[float, float]]] = defaultdict(list)
    for trace in traces_of(Path(arguments[0])):
        part = "chosen on" if _CHOSEN_ON in trace.name else "held out"
        for length_s in _LENGTHS_S:
            for tightness in TIGHTNESS:
                first, last = len(trace.available) // 3, len(trace.available) - int(length_s / trace.gap_s) - 3
                if last <= first:
                    continue
                for _ in range(RUNS):
                    start = rng.randrange(first, last)
                    for ratio in RATIOS:
                        for name, saved, most in _savings(trace, start, length_s * tightness, length_s, ratio):
                            shares[part, ratio, name].append((saved, most))
        print(trace.name, file=sys.stderr, flush=True)
    rows = []
    for (part, ratio, name), pairs in sorted(shares.items()):
        saved, most = (statistics.mean(column) for column in zip(*pairs, strict=True))
        rows.append([part, f"{ratio:g}", name, str(len(pairs)), f"{saved:.1%}", f"{saved / most:.1%}" if most else "–"])
    print(markdown(["traces", "spot price", "policy", "runs", "saved", "of what the oracle saves"], rows))
    return 0


def _savings(
    trace: Trace, start: int, work_s: float, deadline_s: float, ratio: float
) -> Iterator[tuple[str, float, float]]:
    def run() -> Run:
        return Run(trace, start, work_s, deadline_s, ratio)

    alone = (work_s + RESTART_S) / _HOUR_S
    there, away = trace.spells(start)
    observed_s = sum(spell.span_s for spell in there)
    if not observed_s:
        return
    most = 1 - oracle_hours(run()) / alone
    rates = rates_of(there), rates_of(away)
    plan = SpotPlan(SpotRun(work_s, deadline_s, RESTART_S, SAVE_S / 2, SAVE_S, ratio, *rates))
    hours = {policy.__name__.replace("_", " "): hours_of(policy, run()) for policy in (greedy, uniform_progress)}
    hours["kopt's plan"] = hours_of(planned(plan), run())
    for name, paid in hours.items():
        yield name, 1 - paid / alone, most
    # What yes or no decides between, and whoever knows which of both is cheaper.
    price = round(ratio * 1_000_000)
    counted = sum(spell.ended for spell in there)
    yes = spot_advice(SpotQuestion(work_s, counted, observed_s, SAVE_S / 2, RESTART_S, 1_000_000, price)).use_spot
    began = run()
    expected = plan.expected_hours(available=began.available, age_s=began.age_s)
    for name, paid, use in (
        ("yes or no by interruptions alone, of the better of greedy and on-demand", hours["greedy"], yes),
        ("yes or no by the plan, of the better of it and on-demand", hours["kopt's plan"], expected < alone),
    ):
        yield name, (1 - paid / alone) if use else 0.0, max(0.0, 1 - paid / alone)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
