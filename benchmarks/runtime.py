"""Run times against what such jobs took before: a cluster's later runs, clusters never seen, and months by themselves.

``KOPT_DATA_DIR/jobs``: Philly (15 queues of one cluster) and Microsoft's ITP clusters. *Later*: a model fitted on what
had ended before the last 30 % of Philly's runs started. *Never seen*: a model fitted on Philly and the other ITP
clusters. Runs are answered when they start, in their order, so that a run is known from its end on; those without a
predecessor are left out. Losses are mean pinballs of log seconds over seven levels, errors medians of
|log(p50 / actual)|. Baselines: the last finished run of the queue and size, all runs of the queue so far, and the last
20 runs of the queue and size (which answer while a model has drifted).

*Left after an hour*: what is left of runs that last for an hour at least, asked then; the baseline is the class's runs
longer than that. *Left*: of what runs at random starts and ends, as starts of what waits hang on it; a queue counts as
much as another. Beside the model's quantiles at the start, given what has passed, stand those of the class's last runs
that were longer.

    python -m benchmarks.runtime [FOLDER [TRACE …]]

Nine models are fitted, which is most of the time. ``FOLDER`` keeps them by what they were fitted on, so that a run that
was broken off goes on where it was; only these traces are answered about, all by default. A trace's rows are printed to
standard error as soon as they are known.
"""

import bisect
import hashlib
import itertools
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

import kopt.models.runtime
from benchmarks.tables import markdown
from kopt.core.settings import Settings
from kopt.core.workload.run_time import LEVELS, JobRun, RunTimeQuestion
from kopt.features.job_history import Array, JobHistory, in_order, quantiles_of
from kopt.models.runtime.cluster_runs import ClusterRuns, Outcome
from kopt.models.runtime.distribution import LogTimes
from kopt.models.runtime.predictor import RunTimePredictor, RunTimeRequest
from kopt.models.runtime.recent import recent_quantiles
from kopt.models.runtime.records import pinball
from kopt.models.runtime.steps import remaining_of
from kopt.models.runtime.still_running import remaining_of_longer, remaining_while_running
from kopt.models.runtime.table import RunTimeTable, Trace, joined, run_as_of, table_of
from kopt.training.runtime.default_data import DEFAULT_DATA
from kopt.training.runtime.recipe import RunDataset, window_start_s
from kopt.training.runtime.scoring import MONTH_S

_PHILLY = "philly_first_half"
_FITTED_BY = ("distribution.py", "quantile_trees.py", "table.py")
"""What a fit depends on besides its rows; answers depend on more."""
_HOUR_S = 3_600.0
_LEAST_OF_MONTH = 100
_TIMES = 4
_HEAD = ("runs", "answered by", "n", "loss", "error", "factor", "within 2×", "5-95 %", "over p95")
_MIDDLE = len(LEVELS) // 2
_ASKED_AT = 150


def main(arguments: Sequence[str] = ()) -> int:
    folder = Path(os.environ.get("KOPT_DATA_DIR", "")) / DEFAULT_DATA.folder
    if not folder.is_dir():
        print("KOPT_DATA_DIR names no folder with jobs/")
        return 1
    dataset: RunDataset = DEFAULT_DATA.read(folder, Settings(home=Path()))
    kept = Path(arguments[0]) if arguments else None
    tables = {trace.name: table_of(trace) for trace in dataset.traces}
    rows: list[tuple[object, ...]] = []
    months: list[tuple[object, ...]] = []
    unseen: list[Outcome] = []
    for trace in dataset.traces:
        if arguments[1:] and trace.name not in arguments[1:]:
            continue
        fits = _Fits(trace.name, tables, kept)
        model, from_s = fits.first(), fits.from_s
        outcomes = _of_known(model.cluster_runs().observe(trace.runs), from_s)
        if trace.name == _PHILLY:
            of_trace = _of_outcomes("later (Philly)", trace, outcomes)
            of_trace.append(_trained_again("later (Philly)", trace, fits, outcomes))
            of_trace += _left(trace, model, from_s)
            of_trace += _left_at_random("left (Philly, later)", trace, model, from_s)
        else:
            unseen += outcomes
            of_trace = _left_at_random(f"left ({trace.name.removeprefix('ms_itp_')})", trace, model, from_s)
            of_trace += [_row(trace.name.removeprefix("ms_itp_"), "model", *_answered(outcomes))]
        of_months = _months(trace.name, outcomes)
        for row in (*of_trace, *of_months):
            print("; ".join(map(str, row)), file=sys.stderr, flush=True)
        rows += of_trace
        months += of_months
    if not rows:
        print("no trace of that name")
        return 1
    rows += _both("never seen (ITP)", unseen) if unseen else []
    print(markdown(_HEAD, rows))
    print("\n" + markdown(("trace", "month", "n", "loss", "last 20", "error", "last 20", "5-95 %"), months))
    print(f"\nOne answer: {_milliseconds(trace, model):.1f} ms")
    return 0


def _of_known(outcomes: Sequence[Outcome], from_s: float, until_s: float = np.inf) -> list[Outcome]:
    """Those that had a predecessor and started in this time."""
    return [item for item in outcomes if item.recent is not None and from_s <= item.run.started_s < until_s]


@dataclass(frozen=True)
class _Fits:
    """The models that answer about a trace; ``kept``: the folder that has those that were fitted before."""

    trace: str
    tables: dict[str, RunTimeTable]
    kept: Path | None

    @property
    def from_s(self) -> float:
        """Runs are asked about from here on."""
        return window_start_s(self.tables[self.trace]) if self.trace == _PHILLY else -np.inf

    def first(self) -> RunTimePredictor:
        if self.trace == _PHILLY:
            return self.as_of(self.from_s)
        return self._fitted(joined([rows for name, rows in self.tables.items() if name != self.trace]))

    def as_of(self, at_s: float) -> RunTimePredictor:
        """On what was known of the trace itself."""
        return self._fitted(self.tables[self.trace].as_of(at_s))

    def _fitted(self, rows: RunTimeTable) -> RunTimePredictor:
        model = RunTimePredictor()
        if self.kept is None:
            return model.fit(rows)
        columns = (rows.features, rows.base, rows.log_seconds, rows.censored, rows.bursts)
        by = repr((model.settings, metadata.version("lightgbm"))).encode()
        modules = Path(kopt.models.runtime.__file__).parent
        code = [(modules / name).read_bytes() for name in _FITTED_BY]
        digest = hashlib.sha256(b"".join([by, *code, *(each.tobytes() for each in columns)]))
        folder = self.kept / digest.hexdigest()[:16]
        if not folder.is_dir():
            parts = folder.with_suffix(".part")
            parts.mkdir(parents=True, exist_ok=True)
            model.fit(rows).save(parts)
            parts.rename(folder)
        return RunTimePredictor.load(folder)


def _trained_again(label: str, trace: Trace, fits: _Fits, first: Sequence[Outcome]) -> tuple[object, ...]:
    """The model fitted anew as the tested part goes on, each time on what was known then. ``first``: what the model of
    its beginning answered, until the next one."""
    started_s = fits.tables[trace.name].started_s
    later_s = np.quantile(started_s[started_s >= fits.from_s], np.arange(1, _TIMES) / _TIMES)
    outcomes = _of_known(first, fits.from_s, later_s[0])
    for since_s, until_s in itertools.pairwise([*later_s.tolist(), np.inf]):
        runs = [run for run in trace.runs if run.started_s < until_s]
        outcomes += _of_known(fits.as_of(since_s).cluster_runs().observe(runs), since_s, until_s)
    return _row(label, f"model, trained again {_TIMES - 1} times", *_answered(outcomes))


def _answered(outcomes: Sequence[Outcome]) -> tuple[Array, Array]:
    return np.array([item.answered for item in outcomes]), np.array([item.log_seconds for item in outcomes])


def _both(label: str, outcomes: Sequence[Outcome]) -> list[tuple[object, ...]]:
    answered, actual = _answered(outcomes)
    recent = np.array([item.recent for item in outcomes])
    return [_row(label, "last 20", recent, actual), _row(label, "model", answered, actual)]


def _of_outcomes(label: str, trace: Trace, outcomes: Sequence[Outcome]) -> list[tuple[object, ...]]:
    jobs = {item.run.job for item in outcomes}
    last, queue = [], []
    history = JobHistory()
    ended: dict[str, list[float]] = {}
    actual = []
    for _, has_ended, run in in_order(trace.runs):
        if has_ended:
            history.end(run)
            bisect.insort(ended.setdefault(run.kind.queue, []), float(np.log(max(1.0, run.duration_seconds or 0.0))))
            continue
        values, of_queue = history.recent_log_seconds(run.kind), ended.get(run.kind.queue)
        history.start(run)
        if run.job in jobs and run.duration_seconds is not None:
            last.append(recent_quantiles(values[-1:]))
            queue.append(quantiles_of(of_queue or [0.0], LEVELS))
            actual.append(np.log(max(1.0, run.duration_seconds)))
    logs = np.array(actual)
    return [
        _row(label, "last run", np.array(last), logs),
        _row(label, "all of the queue", np.array(queue), logs),
        *_both(label, outcomes),
    ]


def _left(trace: Trace, model: RunTimePredictor, from_s: float) -> list[tuple[object, ...]]:
    """Asked an hour after their start, of every tenth run that lasts so long."""
    runs = model.cluster_runs()
    asked: list[tuple[Array, Array, float]] = []
    events = sorted(
        [(at_s, 0 if has_ended else 1, run) for at_s, has_ended, run in in_order(trace.runs)]
        + [(run.started_s + _HOUR_S, 2, run) for run in trace.runs[::10] if _long(run) and run.started_s >= from_s],
        key=lambda event: event[:2],
    )
    fed: list[JobRun] = []
    for at_s, kind, run in events:
        if kind < 2:
            fed.append(JobRun(run.job, run.kind, run.started_s) if kind else run)
            continue
        runs.observe(fed)
        fed = []
        question = RunTimeQuestion(run.kind, at_s, run.started_s, job=run.job)
        answer = model.answer(RunTimeRequest(question, runs))
        values = runs.history.recent_log_seconds(run.kind)
        if answer.remaining_seconds is None or not values or run.duration_seconds is None:
            continue
        base = remaining_of(LogTimes(tuple(recent_quantiles(values).tolist())), _HOUR_S)
        left = run.duration_seconds - _HOUR_S
        asked.append((np.log(np.maximum(1.0, answer.remaining_seconds)), np.log(np.maximum(1.0, base)), np.log(left)))
    actual = np.array([item[2] for item in asked])
    return [
        _row("left after an hour", "last 20, given an hour", np.array([item[1] for item in asked]), actual),
        _row("left after an hour", "model", np.array([item[0] for item in asked]), actual),
    ]


def _left_at_random(label: str, trace: Trace, model: RunTimePredictor, from_s: float) -> list[tuple[object, ...]]:
    """Asked about up to ten of each queue that run, at up to 150 of its starts and ends."""
    events = [event for event in in_order(trace.runs) if event[0] >= from_s]
    draw = random.Random(0)
    by_queue: dict[str, list[int]] = {}
    for number, (_, _, run) in enumerate(events):
        by_queue.setdefault(run.kind.queue, []).append(number)
    asked_at = {
        number for numbers in by_queue.values() for number in draw.sample(numbers, min(_ASKED_AT, len(numbers) // 3))
    }
    runs = model.cluster_runs()
    fed = [run_as_of(run, from_s) for run in trace.runs if run.started_s < from_s]
    running: dict[str, dict[str, JobRun]] = {}
    by: dict[str, dict[str, list[Array]]] = {name: {} for name in ("model at its start", "longer runs", "model")}
    actual: dict[str, list[float]] = {}
    for number, (at_s, has_ended, run) in enumerate(events):
        of_queue = running.setdefault(run.kind.queue, {})
        if has_ended:
            of_queue.pop(run.job, None)
        else:
            of_queue[run.job] = run
        fed.append(run if has_ended else JobRun(run.job, run.kind, run.started_s))
        if number not in asked_at:
            continue
        runs.observe(fed)
        fed = []
        for other in draw.sample(sorted(of_queue.values(), key=lambda each: each.job), min(10, len(of_queue))):
            elapsed_s, queue = at_s - other.started_s, other.kind.queue
            if elapsed_s <= 0 or other.ended_s is None:
                continue
            log_times = LogTimes(tuple(runs.quantiles(other.kind, other.started_s, other.job)[0].tolist()))
            ended = runs.ended(other.kind)
            answers = {
                "model at its start": remaining_of(log_times, elapsed_s),
                "longer runs": remaining_of_longer(elapsed_s, ended)[0],
                "model": remaining_while_running(log_times, elapsed_s, ended),
            }
            if answers["longer runs"] is None:
                continue
            for name, seconds in answers.items():
                assert seconds is not None
                by[name].setdefault(queue, []).append(np.log(np.maximum(1.0, seconds)))
            actual.setdefault(queue, []).append(float(np.log(max(1.0, other.ended_s - at_s))))
    return [_mean_row(label, name, answers, actual) for name, answers in by.items()]


def _mean_row(
    label: str, by: str, answers: dict[str, list[Array]], actual: dict[str, list[float]]
) -> tuple[object, ...]:
    """Means of the queues' figures."""
    figures = [_figures(np.array(quantiles), np.array(actual[queue])) for queue, quantiles in answers.items()]
    count = f"{sum(map(len, actual.values())):,} ({len(figures)} queues)"
    return (label, by, count, *_shown(np.mean(figures, axis=0)))


def _long(run: JobRun) -> bool:
    return run.duration_seconds is not None and run.duration_seconds > _HOUR_S + 60


def _row(runs: str, by: str, quantiles: Array, actual: Array) -> tuple[object, ...]:
    return (runs, by, f"{len(actual):,}", *_shown(_figures(quantiles, actual)))


def _figures(quantiles: Array, actual: Array) -> Array:
    """Loss, error, and shares within a factor of 2, inside and above the interval."""
    error = np.abs(quantiles[:, _MIDDLE] - actual)
    above = actual > quantiles[:, -1]
    inside = (quantiles[:, 0] <= actual) & ~above
    losses = pinball(quantiles, actual)
    return np.array([losses.mean(), np.median(error), np.mean(error <= np.log(2)), inside.mean(), above.mean()])


def _shown(figures: Array) -> tuple[str, ...]:
    loss, error, within, inside, above = figures
    return f"{loss:.3f}", f"{error:.3f}", f"{np.exp(error):.2f}", f"{within:.0%}", f"{inside:.1%}", f"{above:.1%}"


def _months(name: str, outcomes: Sequence[Outcome]) -> list[tuple[object, ...]]:
    by_month: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        by_month.setdefault(int(outcome.run.started_s // MONTH_S), []).append(outcome)
    result: list[tuple[object, ...]] = []
    for month, part in sorted(by_month.items()):
        if len(part) < _LEAST_OF_MONTH:
            continue
        answered, actual = _answered(part)
        recent = np.array([item.recent for item in part])
        result.append(
            (
                name,
                str(month),
                f"{len(part):,}",
                f"{pinball(answered, actual).mean():.3f}",
                f"{pinball(recent, actual).mean():.3f}",
                f"{np.median(np.abs(answered[:, _MIDDLE] - actual)):.3f}",
                f"{np.median(np.abs(recent[:, _MIDDLE] - actual)):.3f}",
                f"{np.mean((answered[:, 0] <= actual) & (actual <= answered[:, -1])):.1%}",
            )
        )
    return result


def _milliseconds(trace: Trace, model: RunTimePredictor) -> float:
    runs: ClusterRuns = model.cluster_runs()
    runs.observe(trace.runs, answer_last=100)
    request = RunTimeRequest(RunTimeQuestion(trace.runs[-1].kind, trace.runs[-1].started_s), runs)
    took = []
    for _ in range(50):
        begun_s = time.perf_counter()
        model.answer(request)
        took.append(time.perf_counter() - begun_s)
    return 1e3 * float(np.median(took))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
