"""Anomalies in demand: how many are found, how soon, and how many alarms are false, beside simple rules.

Real series with spikes, drops, level shifts, dead services and slow ramps put into them at random times, and the same
series untouched for false alarms. Every rule gets the threshold that keeps ``BUDGET`` false alarms per service and week
on the sources looked at, and is measured with it on sources set apart. What Microsoft's labels call an anomaly, and
where demand collapses to, or rises from, a twentieth within three hours, is no false alarm of
any rule: outages happened in these weeks.

    python -m benchmarks anomalies [--looked-at]
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.anomaly_rivals import RULES, Rule
from benchmarks.anomaly_series import KINDS, QUIET_DAYS, Injected, injected, newest
from benchmarks.demand import Services, read_services
from benchmarks.tables import markdown
from kopt.data.demand.table import DemandSeries
from kopt.features.demand import DAY_S

Array = NDArray[np.float64]
SEEDS = (0, 1, 2, 3, 4)
SET_APART = ("alibaba/ServeGen m-small", "numenta/NAB", "alibaba/clusterdata v2026-GenAI")
"""Sources on which nothing was decided."""
BUDGET, RECALL = 0.5, 0.7
_WEEK_S = 7 * DAY_S
_QUIET_S, _HYSTERESIS = 1800, 0.5
"""An alarm ends after so long below this part of the threshold, whatever the rule."""
_AFTERWARDS_S = 6 * 3600
"""The end of an anomaly is a change too: an alarm about it within so long is neither right nor false."""


@dataclass
class Tally:
    """What one rule did at one threshold."""

    false_alarms: int = 0
    weeks: float = 0.0
    right: int = 0
    wrong: int = 0
    delays_s: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    put: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    @property
    def rate(self) -> float:
        return self.false_alarms / self.weeks

    @property
    def recall(self) -> float:
        return sum(map(len, self.delays_s.values())) / sum(self.put.values())

    @property
    def precision(self) -> float:
        return self.right / max(1, self.right + self.wrong)


@dataclass(frozen=True)
class Case:
    """A series, what was put into it, and where alarms do not count as false: a mask (n,)."""

    series: DemandSeries
    excused: NDArray[np.bool_]
    anomalies: tuple[Injected, ...] = ()


def cases(services: Services, labels: Mapping[str, Array], apart: bool) -> list[Case]:
    found = []
    for series in services.series:
        if (services.groups[series.name] in SET_APART) == apart:
            excused = incidents(series, labels.get(series.name, np.array([])))
            found.append(Case(newest(series), excused))
            found += [Case(changed, excused, what) for changed, what in (injected(series, seed) for seed in SEEDS)]
    return found


def incidents(series: DemandSeries, labelled_s: Array) -> NDArray[np.bool_]:
    """Buckets of the newest days in which something real happened, and six hours after."""
    value, hour = newest(series).value, 3600 // series.step_s
    marked = np.zeros(len(value), dtype=bool)
    labelled = (labelled_s // series.step_s).astype(int) - (len(series) - len(value))
    marked[labelled[(labelled >= 0) & (labelled < len(value))]] = True
    before = pd.Series(value).rolling(3 * hour, min_periods=hour).median().shift(1).to_numpy()
    busy = 0.3 * np.nanmean(value)
    marked |= ((before > busy) & (value < 0.05 * before)) | ((value > busy) & (before < 0.05 * value))
    excused = marked.copy()
    excused[:-1] |= marked[1:]
    for later in range(1, 6 * hour + 1):
        excused[later:] |= marked[:-later]
    return excused


def alarms(scores: Array, threshold: float, step_s: int) -> list[int]:
    """The buckets at which alarms begin."""
    begun: list[int] = []
    active, calm_s = False, 0
    for bucket, score in enumerate(scores.tolist()):
        if active and score < _HYSTERESIS * threshold:
            calm_s += step_s
            active = calm_s < _QUIET_S
        elif score >= _HYSTERESIS * threshold:
            calm_s = 0
        if not active and score >= threshold:
            active, calm_s = True, 0
            begun.append(bucket)
    return begun


def tally(tested: Sequence[Case], scores: Sequence[Array], threshold: float) -> Tally:
    result = Tally()
    for case, score in zip(tested, scores, strict=True):
        step_s = case.series.step_s
        quiet = QUIET_DAYS * DAY_S // step_s
        begun = [bucket for bucket in alarms(score, threshold, step_s) if bucket >= quiet]
        if case.anomalies:
            _count(result, case, begun)
        else:
            result.false_alarms += sum(not case.excused[bucket] for bucket in begun)
            result.weeks += (len(case.series) - quiet) * step_s / _WEEK_S
    return result


def _count(result: Tally, case: Case, begun: Sequence[int]) -> None:
    step_s = case.series.step_s
    for anomaly in case.anomalies:
        result.put[anomaly.kind] += 1
        inside = [bucket for bucket in begun if anomaly.first <= bucket < anomaly.end]
        result.delays_s[anomaly.kind] += [(inside[0] - anomaly.first + 1) * step_s] if inside else []
    for bucket in begun:
        ended = [
            anomaly for anomaly in case.anomalies if anomaly.first <= bucket < anomaly.end + _AFTERWARDS_S // step_s
        ]
        if any(bucket < anomaly.end for anomaly in ended):
            result.right += 1
        elif not ended and not case.excused[bucket]:
            result.wrong += 1


def curve(tested: Sequence[Case], rule: Rule) -> dict[float, Tally]:
    """Tallies by threshold, rising."""
    scores = [rule(case.series) for case in tested]
    untouched = np.concatenate([score for case, score in zip(tested, scores, strict=True) if not case.anomalies])
    levels = np.quantile(untouched[np.isfinite(untouched)], 1 - np.geomspace(2e-4, 0.2, 30))
    return {float(level): tally(tested, scores, float(level)) for level in sorted(set(levels))}


def within_budget(tallies: Mapping[float, Tally], budget: float = BUDGET) -> float:
    """The lowest threshold from which on false alarms stay within the budget."""
    kept = max(tallies)
    for level in sorted(tallies, reverse=True):
        if tallies[level].rate > budget:
            break
        kept = level
    return kept


def at_recall(tallies: Mapping[float, Tally]) -> Tally | None:
    """At the highest threshold that still finds ``RECALL``; None where none does."""
    return next((tallies[level] for level in sorted(tallies, reverse=True) if tallies[level].recall >= RECALL), None)


def _rows(name: str, level: float, measured: Tally, reached: Tally | None) -> tuple[str, ...]:
    precise = "–" if reached is None else f"{reached.precision:.2f} ({reached.rate:.1f})"
    figures = (f"{level:.3g}", f"{measured.rate:.2f}", f"{measured.recall:.2f}", f"{measured.precision:.2f}", precise)
    return (name, *figures, *(_found(measured, kind) for kind in KINDS))


def _found(measured: Tally, kind: str) -> str:
    delays = measured.delays_s[kind]
    share = f"{len(delays) / max(1, measured.put[kind]):.2f}"
    return f"{share}, {np.median(delays) / 60:.0f} min" if delays else share


_COLUMNS = ("rule", "threshold", "false alarms", "recall", "precision", f"precision at recall {RECALL}", *KINDS)


def _labels(folder: Path) -> Mapping[str, Array]:
    """Starts of labelled minutes in seconds by series."""
    table = pd.read_parquet(folder / "demand.parquet", columns=["series", "t", "label"])
    return {str(name): rows.t.to_numpy() for name, rows in table[table.label == 1].groupby("series")}


def _tables(looked_at: Sequence[Case], apart: Sequence[Case] | None) -> Iterable[str]:
    tuned = {name: curve(looked_at, rule) for name, rule in RULES.items()}
    levels = {name: within_budget(tallies) for name, tallies in tuned.items()}
    rows = [_rows(name, levels[name], tuned[name][levels[name]], at_recall(tuned[name])) for name in RULES]
    yield "Sources looked at\n\n" + markdown(_COLUMNS, rows)
    rates = [(f"{budget:g}", f"{within_budget(tuned['kopt'], budget):.1f}") for budget in (0.25, 0.5, 1.0, 2.0)]
    yield markdown(("budget per service and week", "evidence"), rates)
    if apart is not None:
        rows = []
        for name, rule in RULES.items():
            scores = [rule(case.series) for case in apart]
            rows.append(_rows(name, levels[name], tally(apart, scores, levels[name]), at_recall(curve(apart, rule))))
        yield "Sources set apart\n\n" + markdown(_COLUMNS, rows)


def main(arguments: Sequence[str] = ()) -> int:
    data = Path(os.environ.get("KOPT_DATA_DIR", "")) / "demand"
    if not (data / "demand.parquet").exists():
        print("KOPT_DATA_DIR names no folder with demand/demand.parquet: nothing measured")
        return int(os.environ.get("KOPT_REQUIRE_DATA") == "1")
    services, labels = read_services(data), _labels(data)
    apart = None if "--looked-at" in arguments else cases(services, labels, apart=True)
    for table in _tables(cases(services, labels, apart=False), apart):
        print(table, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
