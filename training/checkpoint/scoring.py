"""Scores of checkpoint states: F1 of line labels, states reported during writes, and how often a job was killable."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kopt.core.reason import Reason
from kopt.core.workload.checkpoint import JobState, LineLabel
from kopt.data.joblogs.labelled import LabelledLog
from kopt.training.pipeline.comparisons import PairedErrors, with_comparisons
from kopt.training.pipeline.plot_page import new_figure, write_plot_page
from kopt.training.pipeline.protocols import Backtest, Champion, GateDecision, GateRules, Part, refuse
from kopt.training.pipeline.slices import RunScore, RunScoring

Answer = tuple[LineLabel, JobState, bool]
"""Of one line: its label, the job's state after it, and whether the job is safe to kill then."""


_UNSAFE_LIMIT = 0.02
"""Writes with a safe line that are accepted of the first model; of later ones no more than the champion's."""


@dataclass(frozen=True)
class LogRun:
    """The counts of one log; ``labels`` maps "actual>predicted" to lines.

    Startup counts as other, as the border between the two is arbitrary. ``started_safe``: writes that began while
    the job was reported as safe (recordings only).
    """

    series: str
    framework: str
    labels: Mapping[str, int]
    lines: int
    spans: int
    spans_unsafe: int
    inside: int
    unguarded: int
    outside: int
    held: int
    completions: int
    completions_seen: int
    done: int
    done_false: int
    after: int
    killable: int
    silent: bool
    silent_safe: bool
    started_safe: int = 0

    def __len__(self) -> int:
        return self.lines


def score_log(log: LabelledLog, answers: Sequence[Answer]) -> LogRun:
    """Compares answers with a log's labels. Raises ValueError unless there is one answer per line."""
    if len(answers) != len(log.lines):
        raise ValueError(f"{log.name}: {len(log.lines)} lines, {len(answers)} answers")
    labels = Counter(f"{_merged(label)}>{_merged(answers[n - 1][0])}" for n, label in log.labels.items())
    writing, unsafe_spans, unguarded = set[int](), 0, 0
    for first, last in log.spans:
        fresh = [n for n in range(first, last + 1) if n not in writing]
        writing.update(fresh)
        unguarded += sum(answers[n - 1][1] is not JobState.CKPT_WRITING for n in fresh)
        unsafe_spans += any(answers[n - 1][2] for n in fresh)
    outside = [n for n in log.labels if n not in writing]
    completions = log.completions
    done = [
        n
        for n in range(1, len(answers) + 1)
        if answers[n - 1][1] is JobState.CKPT_DONE and (n == 1 or answers[n - 2][1] is not JobState.CKPT_DONE)
    ]
    first = _first_durable(log)
    after = [n for n in log.labels if n > first and n not in writing]
    silent = not log.spans and not completions and not log.writes
    steps = [n for n, label in log.labels.items() if label is LineLabel.TRAIN_STEP]
    return LogRun(
        log.name,
        log.framework,
        dict(sorted(labels.items())),
        len(answers),
        len(log.spans),
        unsafe_spans,
        len(writing),
        unguarded,
        len(outside),
        sum(answers[n - 1][1] is JobState.CKPT_WRITING for n in outside),
        len(completions),
        sum(any(_done(answers, m) for m in (n - 1, n, n + 1)) for n in completions),
        len(done),
        sum(not any(abs(n - m) <= 1 for m in completions) for n in done),
        len(after),
        sum(answers[n - 1][2] for n in after),
        silent,
        silent and any(answers[n - 1][2] for n in steps),
    )


def _merged(label: LineLabel) -> str:
    return (LineLabel.OTHER if label is LineLabel.STARTUP else label).value


def _done(answers: Sequence[Answer], number: int) -> bool:
    return 1 <= number <= len(answers) and answers[number - 1][1] is JobState.CKPT_DONE


def _first_durable(log: LabelledLog) -> int:
    """The line by which the log's first checkpoint was durable."""
    ends = [write.end_s for write in log.writes if write.complete]
    if log.arrivals_s and ends:
        return sum(at <= min(ends) for at in log.arrivals_s)
    return min(log.completions, default=len(log.lines))


@dataclass(frozen=True)
class LogSummary:
    """Figures of a slice; shares are of what the slice has, 0 where it has none. ``services`` counts its logs."""

    slice: str
    services: int
    macro_f1: float
    spans: int
    spans_unsafe: int
    unguarded: float
    held: float
    completions_seen: float
    done_false: float
    killable: float
    silent_safe: int
    f1: Mapping[str, float] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """Figures by name."""
        return {key: float(value) for key, value in asdict(self).items() if key not in ("slice", "services", "f1")}


def summary(label: str, runs: Sequence[LogRun]) -> LogSummary:
    """Figures of some logs. Raises ValueError without any."""
    if not runs:
        raise ValueError(f"no log in {label!r}")

    def total(name: str) -> int:
        return sum(getattr(run, name) for run in runs)

    def share(part: str, whole: str) -> float:
        return total(part) / max(1, total(whole))

    f1 = f1_by_label(runs)
    return LogSummary(
        label,
        len(runs),
        float(np.mean(list(f1.values()))) if f1 else 0.0,
        total("spans"),
        total("spans_unsafe"),
        share("unguarded", "inside"),
        share("held", "outside"),
        share("completions_seen", "completions"),
        share("done_false", "done"),
        share("killable", "after"),
        total("silent_safe"),
        f1,
    )


def f1_by_label(runs: Iterable[LogRun]) -> dict[str, float]:
    """F1 of each label that occurs."""
    hit, extra, lost = Counter[str](), Counter[str](), Counter[str]()
    for run in runs:
        for pair, lines in run.labels.items():
            actual, _, predicted = pair.partition(">")
            if actual == predicted:
                hit[actual] += lines
            else:
                lost[actual] += lines
                extra[predicted] += lines
    return {
        name: 2 * hit[name] / max(1, 2 * hit[name] + extra[name] + lost[name]) for name in sorted(set(hit) | set(lost))
    }


class CheckpointScoring(RunScoring[LogRun, LogSummary]):
    """See ``Scoring``."""

    def summary(self, label: str, runs: Sequence[LogRun]) -> LogSummary:
        return summary(label, runs)

    def slices_of(self, run: LogRun) -> tuple[str, ...]:
        return (f"framework {run.framework}",)

    def read_run(self, document: Mapping[str, Any]) -> LogRun:
        return LogRun(**document)

    def decide(
        self,
        dataset: Any,
        parts: Sequence[Part],
        challenger: Sequence[RunScore[LogRun]],
        backtests: Mapping[str, Backtest],
        champion: Champion | None,
        rules: GateRules,
    ) -> GateDecision:
        """Better: no more writes with a safe line than the champion's, and labels better beyond noise."""
        if not challenger:
            return refuse("TOO_LITTLE_DATA", "There is no log of an unseen framework to test the model on.")
        mine = summary("all", [score.run for score in challenger])
        if champion is None:
            if mine.spans_unsafe > _UNSAFE_LIMIT * mine.spans:
                text = (
                    f"{mine.spans_unsafe} of {mine.spans} writes had a line that was called safe; "
                    f"{_UNSAFE_LIMIT:.0%} are accepted of a first model."
                )
                return refuse("UNSAFE", text, spans_unsafe=mine.spans_unsafe)
            text = f"First model; macro-F1 {mine.macro_f1:.2f}, killable {mine.killable:.0%} of the time."
            return GateDecision(True, (Reason("BETTER", text, mine.metrics()),))
        theirs = self.unseen_by(champion)
        shared = [score for score in challenger if score.run.series in theirs]
        decision = _compared([(score.run, theirs[score.run.series]) for score in shared], rules)
        rows = [
            PairedErrors(score.slices, score.run.framework, _errors(theirs[score.run.series], score.run))
            for score in shared
        ]
        return with_comparisons(decision, rows, rules)

    def draw(
        self,
        folder: Path,
        dataset: Any,
        parts: Sequence[Part],
        scores: Sequence[RunScore[LogRun]],
        backtests: Mapping[str, Backtest],
    ) -> Sequence[Path]:
        """The confusion matrix of line labels."""
        confusion = Counter[str]()
        for score in scores:
            confusion.update(score.run.labels)
        names = sorted({name for pair in confusion for name in pair.split(">")})
        cells = np.array([[confusion[f"{actual}>{predicted}"] for predicted in names] for actual in names], float)
        shares = cells / np.maximum(1, cells.sum(axis=1, keepdims=True))
        figure = new_figure("Lines of unseen frameworks", "predicted", "actual", height_px=560)
        figure.add_heatmap(z=shares, x=names, y=names, text=cells, texttemplate="%{text}", colorscale="Blues")
        figure.update_yaxes(autorange="reversed")
        return (write_plot_page(folder, {"labels": figure}),)


def _errors(champion: LogRun, challenger: LogRun) -> dict[str, tuple[float, float]]:
    """Of one log: what its labels lack to a macro-F1 of 1, and writes in which a line was called safe."""
    theirs, mine = summary("", [champion]), summary("", [challenger])
    return {
        "lack_of_macro_f1": (1 - theirs.macro_f1, 1 - mine.macro_f1),
        "spans_unsafe": (float(theirs.spans_unsafe), float(mine.spans_unsafe)),
    }


def _compared(paired: Sequence[tuple[LogRun, LogRun]], rules: GateRules) -> GateDecision:
    if len(paired) < 2:
        text = "The champion was trained on every log there is here. Train again when there are logs of new frameworks."
        return refuse("TOO_LITTLE_DATA", text, logs=len(paired))
    mine, theirs = (
        summary("all", [log_run for log_run, _ in paired]),
        summary("all", [log_run for _, log_run in paired]),
    )
    if mine.spans_unsafe > theirs.spans_unsafe:
        text = f"Safe lines in {mine.spans_unsafe} writes, the champion's in {theirs.spans_unsafe}."
        return refuse("UNSAFE", text, spans_unsafe=mine.spans_unsafe)
    low, high = _gain(paired, rules)
    gain = mine.macro_f1 - theirs.macro_f1
    comparison = f"macro-F1 {gain:+.3f} (between {low:+.3f} and {high:+.3f}), killable {mine.killable:.0%}"
    if high < 0:
        return refuse("WORSE", f"Worse than the champion: {comparison}.", macro_f1=gain)
    if low <= 0 and mine.spans_unsafe == theirs.spans_unsafe:
        return refuse("NO_BETTER", f"Not better than the champion beyond noise: {comparison}.", macro_f1=gain)
    return GateDecision(True, (Reason("BETTER", f"Better than the champion: {comparison}.", {"macro_f1": gain}),))


def _gain(paired: Sequence[tuple[LogRun, LogRun]], rules: GateRules) -> tuple[float, float]:
    """Bounds of the difference in macro-F1, by resampling frameworks."""
    groups: dict[str, list[tuple[LogRun, LogRun]]] = {}
    for pair in paired:
        groups.setdefault(pair[0].framework, []).append(pair)
    names, rng = sorted(groups), np.random.default_rng(rules.seed)
    result = []
    for _ in range(min(rules.resamples, 400)):
        drawn = [pair for n in rng.integers(len(names), size=len(names)) for pair in groups[names[n]]]
        ours, others = f1_by_label(log_run for log_run, _ in drawn), f1_by_label(log_run for _, log_run in drawn)
        result.append(float(np.mean(list(ours.values())) - np.mean(list(others.values()))))
    return float(np.quantile(result, rules.level / 2)), float(np.quantile(result, 1 - rules.level / 2))
