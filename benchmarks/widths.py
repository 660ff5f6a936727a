"""Widths of elastic jobs in replay: which changes stay though the last worker is not worth its GPUs (K18).

The noise is that of ``benchmarks.rightsizing``. A change of width starts the job again one to three minutes later, up
to as many minutes before the step that it had; from there its steps take what the marginal efficiency of the worker
between the two widths makes of them. The product finds where it is back, compares and decides.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from benchmarks.rightsizing import (
    END_S,
    POLL_S,
    REPORTED,
    SETTINGS,
    TUNED_ON,
    Case,
    Generator,
    Noise,
    Tally,
    marks_of,
    share,
)
from benchmarks.tables import markdown
from kopt.core.workload.rightsizing import Batch, WidthChange
from kopt.policies.rightsizing.step_times import Marks, StepMark, longest_gap_s
from kopt.policies.rightsizing.watch import Action, Since, evaluate, watched
from kopt.policies.rightsizing.width import WidthSettings, for_each_sample, most_cost, watch_settings

WIDTHS = ((2, 3), (4, 5), (8, 9), (3, 2), (5, 4), (9, 8))
EFFICIENCIES = (1.0, 0.9, 0.65, 0.5, 0.2, -0.5)
"""Marginal ones, of the worker between the two widths; below the threshold a wider job is harmed by staying so, and a
narrower one from there on."""


def _cases(families: dict[str, Noise], seeds: Sequence[int]) -> Iterator[tuple[Case, WidthChange, float]]:
    """Also the step at which the job was. Its workers start again one to three minutes after the change, up to as much
    before that step; ``factor`` is GPU time for a sample, of what it may be."""
    for name, noise in families.items():
        for number, (before, after) in enumerate(WIDTHS):
            for efficiency in EFFICIENCIES:
                for seed in seeds:
                    rng = np.random.default_rng([seed, number, round(100 * (efficiency + 2))])
                    batch = Batch.FIXED if rng.random() < 0.5 else Batch.PER_WORKER
                    change = WidthChange(before, after, batch)
                    fewer = min(before, after)
                    per_gpu = (fewer + efficiency) / (fewer + 1)
                    cost = 1 / per_gpu if after > before else per_gpu
                    steps = cost * (before / after if batch is Batch.FIXED else 1.0)
                    marks, at_step = _restarted(rng, marks_of(rng, noise, steps, 0.0, SETTINGS.baseline_s, 2 * END_S))
                    allowed = 1 + most_cost(change, WidthSettings().threshold)
                    yield Case(name, cost / allowed, 0.0, marks), change, at_step


def _restarted(rng: Generator, marks: Sequence[StepMark]) -> tuple[list[StepMark], int]:
    """And the step of the last mark before the change."""
    before, later = [each for each in marks if each.at_s <= 0], [each for each in marks if each.at_s > 0]
    pause_s, seconds = float(rng.uniform(60, 180)), later[1].at_s - later[0].at_s
    lost = int(rng.uniform(0, 180) / seconds) if seconds > 0 else 0
    return [*before, *(StepMark(each.at_s + pause_s, each.step - lost) for each in later)], before[-1].step


def _decide(case: Case, change: WidthChange, at_step: int) -> tuple[Action, float]:
    """And how many seconds after the job was back at its step."""
    settings = watch_settings(change, most_cost(change, WidthSettings().threshold), SETTINGS)
    followed = Marks(1e6)
    for mark in case.marks:
        followed.add(mark)
    times = followed.times(settings.sample_s)
    usual_s = settings.stalled_after * longest_gap_s([each for each in times if each.end_s <= 0])
    again_s = followed.again_s(0.0, usual_s) or 0.0
    back_s = next(each.at_s for each in case.marks if each.at_s >= again_s and each.step >= at_step and each.at_s > 0)
    compared = for_each_sample(times, 0.0, change)
    for elapsed_s in np.arange(POLL_S, END_S + 1, POLL_S):
        now_s = back_s + float(elapsed_s)
        shown = [each for each in compared if each.end_s <= now_s]
        last_s = max(mark.at_s for mark in case.marks if mark.at_s <= now_s)
        seen = watched(shown, last_s, Since(0.0, back_s, grows=True), now_s, settings)
        if (action := evaluate(seen, settings).action) is not Action.WATCH:
            return action, float(elapsed_s)
    return Action.KEEP, END_S


def replay(families: dict[str, Noise], seeds: Sequence[int]) -> dict[str, Tally]:
    """By noise; slower is what costs more GPU time for a sample than the width is worth."""
    tallies = defaultdict[str, Tally](Tally)
    for case, change, at_step in _cases(families, seeds):
        tallies[case.noise].add(case, *_decide(case, change, at_step))
    return dict(tallies)


def main() -> int:
    tallies = replay(TUNED_ON | REPORTED, range(100, 105))
    together = Tally()
    for each in tallies.values():
        together.join(each)
    rows = [
        [
            noise,
            share(tally.slower_kept, tally.slower),
            share(tally.early, tally.slower),
            share(tally.clear_early, tally.clear),
            share(tally.harmless_kept, tally.harmless),
        ]
        for noise, tally in [*sorted(tallies.items()), ("all", together)]
    ]
    header = ["noise", "not worth it, kept", "undone in two windows", "of those worse by 10 %", "worth it, kept"]
    print(markdown(header, rows))
    print(f"\nundone after {median(together.undone_s):.0f} s, median, once the job is back at its step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
