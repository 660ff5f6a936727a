"""Changes of running workloads in replay: which are undone, how soon, and which stay though they slow steps (K18).

Step times are drawn from kinds of noise that differ in shape, correlation and rhythm; a change multiplies them, at once
or some minutes later. The product's reader of steps, interval and action decide on them, and beside them two rules
with fixed thresholds. The noise of ``TUNED_ON`` was looked at while the settings were chosen, the rest was not.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from time import perf_counter

import numpy as np

from benchmarks.tables import markdown
from kopt.policies.rightsizing.step_times import StepMark, before_and_after, longest_gap_s, step_times
from kopt.policies.rightsizing.watch import Action, Watched, WatchSettings, evaluate

SETTINGS = WatchSettings()
BY_MINUTES = WatchSettings(baseline_s=1800.0)
"""As the controller has it, which knows of steps what the log agent writes on pods once a minute."""
POLL_S, END_S = 10.0, 600.0
Generator = np.random.Generator
Noise = Callable[[Generator, int], np.ndarray]


def _normal(rng: Generator, n: int) -> np.ndarray:
    return 1 + 0.05 * rng.standard_normal(n)


def _lognormal(rng: Generator, n: int) -> np.ndarray:
    return np.exp(0.2 * rng.standard_normal(n))


def _heavy(rng: Generator, n: int) -> np.ndarray:
    return 1 + 0.05 * np.abs(rng.standard_t(2, n))


def _correlated(rng: Generator, n: int) -> np.ndarray:
    """Others on the same storage or network: an autoregression that forgets in about ten steps."""
    result, level = np.empty(n), 0.0
    for i, shock in enumerate(rng.standard_normal(n)):
        level = 0.9 * level + 0.03 * shock
        result[i] = math.exp(level)
    return result


def _checkpoints(rng: Generator, n: int) -> np.ndarray:
    """Every 150 to 300 steps one that takes 20 to 40 times as long."""
    result = 1 + 0.03 * rng.standard_normal(n)
    every = int(rng.integers(150, 300))
    result[int(rng.integers(every)) :: every] += rng.uniform(20, 40)
    return result


def _buckets(rng: Generator, n: int) -> np.ndarray:
    """Batches of sequences of three lengths."""
    return rng.choice([0.7, 1.0, 1.6], n, p=[0.4, 0.4, 0.2]) * (1 + 0.02 * rng.standard_normal(n))


def _drift(rng: Generator, n: int) -> np.ndarray:
    """Clocks that sink as the GPU warms up, to 3 % less, over half an hour."""
    return (1 + 0.03 * np.minimum(np.arange(n) / 1800, 1)) * (1 + 0.03 * rng.standard_normal(n))


def _stalls(rng: Generator, n: int) -> np.ndarray:
    """One step in twenty waits for data, for two to four steps."""
    return 1 + 0.02 * rng.standard_normal(n) + (rng.random(n) < 0.05) * rng.uniform(2, 4, n)


def _gamma(rng: Generator, n: int) -> np.ndarray:
    return rng.gamma(16, 1 / 16, n)


def _evaluations(rng: Generator, n: int) -> np.ndarray:
    """Every 120 steps thirty that take four tenths of the time, as when a model is evaluated between."""
    return np.where(np.arange(n) % 120 < 30, 0.4, 1.0) * (1 + 0.04 * rng.standard_normal(n))


def _regimes(rng: Generator, n: int) -> np.ndarray:
    """A neighbour that comes and goes, each time for 40 steps in the mean, and costs 15 %."""
    switches = np.cumsum(rng.random(n) < 1 / 40) % 2
    return (1 + 0.15 * switches) * (1 + 0.03 * rng.standard_normal(n))


def _growing(rng: Generator, n: int) -> np.ndarray:
    """Sequences become longer through the training: 2 % in a thousand steps."""
    return (1 + 2e-5 * np.arange(n)) * np.exp(0.06 * rng.standard_normal(n))


def _tides(rng: Generator, n: int) -> np.ndarray:
    """Traffic on shared links that rises and falls by 8 % within twenty minutes, beside noise of 4 %."""
    phase = rng.uniform(0, 2 * np.pi)
    return (1 + 0.08 * np.sin(phase + np.arange(n) * 2 * np.pi / 600)) * (1 + 0.04 * rng.standard_normal(n))


def _uniform(rng: Generator, n: int) -> np.ndarray:
    return rng.uniform(0.8, 1.2, n)


def _shards(rng: Generator, n: int) -> np.ndarray:
    """Every 250 steps a new shard, whose first ten steps take two to three times as long."""
    result = 1 + 0.03 * rng.standard_normal(n)
    result[(np.arange(n) + int(rng.integers(250))) % 250 < 10] *= rng.uniform(2, 3)
    return result


def _spikes(rng: Generator, n: int) -> np.ndarray:
    """Garbage collection and the like: 2 % of steps take as an exponential tail has it."""
    return np.exp(0.03 * rng.standard_normal(n)) + (rng.random(n) < 0.02) * rng.exponential(3, n)


TUNED_ON: dict[str, Noise] = {
    "normal, 5 %": _normal,
    "log-normal, 20 %": _lognormal,
    "heavy tails (t, 2)": _heavy,
    "correlated": _correlated,
    "checkpoints": _checkpoints,
    "three lengths": _buckets,
    "slow drift": _drift,
    "waits for data": _stalls,
    "gamma": _gamma,
    "evaluations": _evaluations,
    "a neighbour": _regimes,
    "growing sequences": _growing,
}
REPORTED: dict[str, Noise] = {
    "tides of traffic": _tides,
    "uniform": _uniform,
    "new shards": _shards,
    "spikes": _spikes,
}
FACTORS = (1.0, 1.03, 1.05, 1.1, 1.2, 1.5, 2.0)
"""Of step time, by the change."""
DELAYS_S = (0.0, 90.0, 210.0)
STEP_SECONDS = (0.3, 2.0, 8.0)


@dataclass(frozen=True)
class Case:
    noise: str
    factor: float
    delay_s: float
    marks: list[StepMark]


def _cases(families: dict[str, Noise], seeds: Sequence[int], settings: WatchSettings = SETTINGS) -> Iterator[Case]:
    for name, noise in families.items():
        for factor in FACTORS:
            for delay_s in DELAYS_S if factor > 1 else (0.0,):
                for seed in seeds:
                    rng = np.random.default_rng([seed, round(factor * 100), int(delay_s)])
                    marks = marks_of(rng, noise, factor, delay_s, settings.baseline_s)
                    yield Case(name, factor, delay_s, marks if settings is SETTINGS else _by_minutes(rng, marks))


def _by_minutes(rng: Generator, marks: Sequence[StepMark]) -> list[StepMark]:
    """The last step of each minute, in whole seconds."""
    result, next_s = [], marks[0].at_s + float(rng.uniform(0, 60))
    for mark in marks:
        if mark.at_s >= next_s:
            result.append(StepMark(float(math.floor(mark.at_s)), mark.step))
            next_s += 60
    return result


def marks_of(
    rng: Generator, noise: Noise, factor: float, delay_s: float, before_s: float, end_s: float = END_S
) -> list[StepMark]:
    """From the beginning of the baseline, before the change at 0, until ``end_s`` after it."""
    seconds = float(rng.choice(STEP_SECONDS))
    times = np.maximum(noise(rng, int(1.5 * (before_s + end_s) / seconds / min(factor, 1.0)) + 600), 0.05) * seconds
    at_s, result = -before_s, []
    for step, took in enumerate(times):
        at_s += took * (factor if at_s >= delay_s else 1.0)
        if at_s > end_s:
            break
        result.append(StepMark(at_s, step))
    return result


Rule = Callable[[Watched], Action]


def _ours(watched: Watched) -> Action:
    return evaluate(watched, SETTINGS).action


def _threshold(share: float) -> Rule:
    """The usual rule: each minute the mean of what came since against the mean before; undone above ``share``."""

    def rule(watched: Watched) -> Action:
        is_due = watched.after and watched.elapsed_s % SETTINGS.window_s == 0
        if is_due and fmean(watched.after) > (1 + share) * fmean(watched.before):
            return Action.UNDO
        return Action.KEEP if watched.elapsed_s >= SETTINGS.deadline_s else Action.WATCH

    return rule


def _ours_by_minutes(watched: Watched) -> Action:
    return evaluate(watched, BY_MINUTES).action


RULES: dict[str, Rule] = {"kopt": _ours, "mean + 5 %": _threshold(0.05), "mean + 10 %": _threshold(0.10)}


def _decide(case: Case, rule: Rule, took_s: list[float]) -> tuple[Action, float]:
    """And how many seconds after the change."""
    times = step_times(case.marks, SETTINGS.sample_s)
    before, after = before_and_after(times, 0.0, 0.0)
    past, gap_s = [each.seconds for each in before], longest_gap_s(before)
    elapsed_s = 0.0
    while elapsed_s < END_S:
        elapsed_s += POLL_S
        last_s = max((mark.at_s for mark in case.marks if mark.at_s <= elapsed_s), default=0.0)
        shown = [each for each in after if each.end_s <= elapsed_s]
        watched = Watched(
            past,
            [each.seconds for each in shown],
            elapsed_s,
            [each.start_s for each in shown],
            elapsed_s - max(last_s, 0.0),
            gap_s,
        )
        began = perf_counter()
        action = rule(watched)
        took_s.append(perf_counter() - began)
        if action is not Action.WATCH:
            return action, elapsed_s
    return Action.KEEP, elapsed_s


@dataclass
class Tally:
    slower: int = 0
    """Of changes that make steps slower by the tolerance or more."""
    slower_kept: int = 0
    early: int = 0
    """Undone within two windows of when steps became slower."""
    clear: int = 0
    """Slower by 10 % or more."""
    clear_early: int = 0
    harmless: int = 0
    harmless_kept: int = 0
    undone_s: list[float] = field(default_factory=list)

    def add(self, case: Case, action: Action, at_s: float) -> None:
        if case.factor <= 1:
            self.harmless += 1
            self.harmless_kept += action is Action.KEEP
            return
        self.slower += 1
        self.slower_kept += action is Action.KEEP
        early = action is Action.UNDO and at_s - case.delay_s <= 2 * SETTINGS.window_s
        self.early += early
        self.clear += case.factor >= 1.1
        self.clear_early += early and case.factor >= 1.1
        if action is Action.UNDO:
            self.undone_s.append(at_s - case.delay_s)

    def join(self, other: "Tally") -> None:
        """With those of another."""
        for name in ("slower", "slower_kept", "early", "clear", "clear_early", "harmless", "harmless_kept"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.undone_s += other.undone_s


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "-"


def replay_by_minutes(families: dict[str, Noise], seeds: Sequence[int]) -> Tally:
    """Of the product's rule, over all noise."""
    tally, took = Tally(), list[float]()
    for case in _cases(families, seeds, BY_MINUTES):
        tally.add(case, *_decide(case, _ours_by_minutes, took))
    return tally


def replay(
    families: dict[str, Noise], seeds: Sequence[int]
) -> tuple[dict[tuple[str, str], Tally], dict[str, list[float]]]:
    """Tallies by rule and noise, and seconds for each decision by rule."""
    tallies, took = defaultdict[tuple[str, str], Tally](Tally), defaultdict[str, list[float]](list)
    for case in _cases(families, seeds):
        for name, rule in RULES.items():
            tallies[name, case.noise].add(case, *_decide(case, rule, took[name]))
    return dict(tallies), dict(took)


def main() -> int:
    tallies, took = replay(TUNED_ON | REPORTED, range(100, 120))
    print(
        markdown(
            ["noise", "rule", "slower, kept", "undone in two windows", "of those slower by 10 %", "not slower, kept"],
            (
                [
                    f"{noise}{' (tuned on)' if noise in TUNED_ON else ''}",
                    rule,
                    share(tally.slower_kept, tally.slower),
                    share(tally.early, tally.slower),
                    share(tally.clear_early, tally.clear),
                    share(tally.harmless_kept, tally.harmless),
                ]
                for (rule, noise), tally in sorted(tallies.items(), key=lambda item: (item[0][1], item[0][0]))
            ),
        )
    )
    for rule in RULES:
        tallied = [tally for (name, noise), tally in tallies.items() if name == rule and noise in REPORTED]
        kept, slower = sum(each.slower_kept for each in tallied), sum(each.slower for each in tallied)
        early, clear = sum(each.clear_early for each in tallied), sum(each.clear for each in tallied)
        fine, harmless = sum(each.harmless_kept for each in tallied), sum(each.harmless for each in tallied)
        undone_s = median(at_s for each in tallied for at_s in each.undone_s)
        p99_ms = float(np.quantile(took[rule], 0.99)) * 1e3
        print(
            f"\n{rule}, noise not tuned on: slower and kept {share(kept, slower)}; slower by 10 % or more and undone "
            f"in two windows {share(early, clear)}, any {share(sum(e.early for e in tallied), slower)}; not slower "
            f"and kept {share(fine, harmless)}; undone after {undone_s:.0f} s, median; decided in {p99_ms:.2f} ms, p99"
        )
    tally = replay_by_minutes(TUNED_ON | REPORTED, range(100, 120))
    print(
        f"\nkopt, steps as the log agent writes them on pods, all noise: slower and kept "
        f"{share(tally.slower_kept, tally.slower)}; slower by 10 % or more and undone in two windows "
        f"{share(tally.clear_early, tally.clear)}; not slower and kept "
        f"{share(tally.harmless_kept, tally.harmless)}; undone after {median(tally.undone_s):.0f} s, median"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
