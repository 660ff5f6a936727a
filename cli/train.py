"""``kopt train``: data → features → folds → evaluation → gate → registered model, in one command."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli import inputs
from kopt.cli.edge import leave_on_sigterm, usage_error
from kopt.cli.options import Label, Output, Query, Since, Step, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import Steps
from kopt.cli.up import make_home
from kopt.core.settings import Settings
from kopt.serving.environment import load_settings

if TYPE_CHECKING:
    from kopt.training.pipeline import TrainingOutcome
    from kopt.training.progress import Event
    from kopt.training.recipe import Source

STEPS = {
    "read": "read the data", "ray": "start Ray", "features": "compute features", "search": "search parameters",
    "fit": "fit and forecast folds", "champion": "replay the champion", "evaluate": "evaluate and judge",
    "register": "register",
}  # fmt: skip


@dataclass(frozen=True)
class SummaryRow:
    """Scores of the new model on services it had not seen, per slice and horizon."""

    slice: str = column("slice")
    horizon_s: int = column("ahead", show=lambda seconds: f"{seconds / 60:g} min")
    services: int = column("services")
    mase: float = column("MASE")
    mase_ratio: float = column("to last value", show=lambda ratio: f"× {ratio:.2f}")
    violation_q99: float = column("p99 violated", show=lambda share: f"{share:.1%}")
    eff99: float = column("lent of oracle's", show=lambda share: f"{share:.0%}")
    eff99_last: float = column("by last value", show=lambda share: f"{share:.0%}")


@dataclass(frozen=True)
class SizeRow:
    """Scores of the new model on families of models it had not seen, per slice."""

    slice: str = column("slice")
    services: int = column("runs")
    median_error: float = column("median error", show=lambda share: f"{share:.1%}")
    p90_error: float = column("p90", show=lambda share: f"{share:.1%}")
    p_under: float = column("above the interval", show=lambda share: f"{share:.1%}")
    mean_slack: float = column("mean slack", show=lambda share: f"{share:.1%}")
    coverage: float = column("inside", show=lambda share: f"{share:.1%}")


@dataclass(frozen=True)
class LogRow:
    """Scores of the new model on logs of frameworks it had not seen, per slice."""

    slice: str = column("slice")
    services: int = column("logs")
    macro_f1: float = column("macro-F1", show=lambda score: f"{score:.3f}")
    spans: int = column("writes")
    spans_unsafe: int = column("with a safe line")
    unguarded: float = column("lines not guarded", show=lambda share: f"{share:.1%}")
    held: float = column("wrongly held", show=lambda share: f"{share:.1%}")
    completions_seen: float = column("completions seen", show=lambda share: f"{share:.1%}")
    done_false: float = column("false ends", show=lambda share: f"{share:.1%}")
    killable: float = column("killable", show=lambda share: f"{share:.1%}")
    silent_safe: int = column("silent logs safe")


@dataclass(frozen=True)
class BandwidthRow:
    """Scores of the new model on classes of machines it had not seen, per slice."""

    slice: str = column("slice")
    services: int = column("machines")
    median_error: float = column("median error", show=lambda share: f"{share:.1%}")
    p90_error: float = column("p90", show=lambda share: f"{share:.1%}")
    coverage: float = column("inside", show=lambda share: f"{share:.1%}")
    latency_error: float = column("latency's error", show=lambda share: f"{share:.1%}")


ROWS: "dict[str, type[SummaryRow | SizeRow | LogRow | BandwidthRow]]" = {
    "bandwidth": BandwidthRow, "checkpoint": LogRow, "demand": SummaryRow, "sizing": SizeRow,
}  # fmt: skip

Data = Annotated[
    str | None, typer.Option("--data", metavar="PATH", help="A folder, Parquet or CSV file, or public trace.")
]
Python = Annotated[
    str | None,
    typer.Option("--python", metavar="PATH", help="For sizing: a Python with torch, timm and torchvision."),
]
Prometheus = Annotated[str | None, typer.Option("--prometheus", metavar="URL", help="A Prometheus server.")]
Folds = Annotated[int, typer.Option("--folds", min=2, max=50, help="Fits for cross-validation, at most.")]
Trials = Annotated[int, typer.Option("--trials", min=0, max=1000, help="Parameter sets tried before.")]
Promote = Annotated[bool, typer.Option("--promote/--no-promote", help="Make it champion when it passes the gate.")]


def train(
    predictor: Annotated[str, typer.Argument(metavar="PREDICTOR", help="bandwidth, checkpoint, demand or sizing.")],
    data: Data = None, python: Python = None, prometheus: Prometheus = None, query: Query = "",
    label: Label = "service", since: Since = "30d", step: Step = "5m", folds: Folds = 3, trials: Trials = 0,
    promote: Promote = True, output: Output = Format.TABLE,
) -> None:  # fmt: skip
    """Train a challenger, hold it against the champion, register it, and promote it where it is better.

    Without --data and --prometheus it trains on the services of this home (those on the pages), or on generated ones.
    A run that was interrupted goes on where it was when the same command is given again. A model that the gate
    refuses is registered as challenger, with the reasons; that is no failure (status 0).

    Examples:

        kopt train demand --data /data/demand

        kopt train demand --prometheus http://prometheus:9090 --query 'sum by (service) (increase(requests[$step]))'

        kopt train sizing --data /data/memory --python /envs/train/bin/python

        kopt train checkpoint --data /data/logs

        kopt train bandwidth --data /data/topology
    """
    from kopt.training.recipe import RECIPES

    if predictor not in RECIPES:
        usage_error(f"{predictor!r} is none of {', '.join(RECIPES)}", "PREDICTOR")
    settings = load_settings()
    source: Source
    if predictor == "sizing":
        source = _sized(settings, data, python, prometheus)
    elif predictor == "checkpoint":
        source = _logs(data, prometheus)
    elif predictor == "bandwidth":
        source = _measured(data, prometheus)
    else:
        source = _source(settings, data, prometheus, query, label, seconds(since, "--since"), seconds(step, "--step"))
    make_home(settings.home)
    from kopt.training.pipeline import TrainOptions
    from kopt.training.pipeline import train as run

    leave_on_sigterm()
    with Steps() as steps, Telling(steps) as telling:
        options = TrainOptions(folds=folds, trials=trials, promote=promote)
        outcome = run(predictor, source=source, settings=settings, options=options, progress=telling.progress)
    show(_answer(outcome, telling_slices=output != Format.TABLE), output)


class Telling:
    """Turns the pipeline's events into steps on the terminal; a step may wait for others that it needs."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._running: dict[str, str] = {}

    def __enter__(self) -> "Telling":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for step, outcome in self._running.items():
            self._steps.end(step, outcome, failed=kind is not None)
        if isinstance(kind, type) and issubclass(kind, KeyboardInterrupt):
            self._steps.tell("interrupted; the same command goes on where it was")

    def progress(self, event: "Event") -> None:
        what = STEPS.get(event.step, event.step)
        if event.step not in self._running:
            self._steps.begin(event.step, what)
        counted = f" {event.done} of {event.total}" if event.total > 1 else ""
        kept = f", {event.kept} kept from before" if event.kept else ""
        outcome = f"{event.message}{counted}{kept}".strip(" ,")
        self._running[event.step] = outcome
        self._steps.note(event.step, f"{what} {outcome}".rstrip())
        if event.done == event.total:
            self._steps.end(event.step, self._running.pop(event.step))


def _sized(settings: Settings, data: str | None, python: str | None, prometheus: str | None) -> "Source":
    from kopt.training.sizing import MemoryRuns

    if prometheus or not data:
        usage_error("sizing is trained on a folder of measured runs: give --data DIR", "--data")
    return MemoryRuns(inputs.readable(Path(data)), settings, python)


def _logs(data: str | None, prometheus: str | None) -> "Source":
    from kopt.training.checkpoint import LogFolders

    if prometheus or not data:
        usage_error("checkpoint is trained on a folder of labelled logs: give --data DIR", "--data")
    return LogFolders((inputs.readable(Path(data)),))


def _measured(data: str | None, prometheus: str | None) -> "Source":
    from kopt.training.bandwidth import BandwidthTables

    if prometheus or not data:
        usage_error("bandwidth is trained on tables of measured collectives: give --data DIR", "--data")
    return BandwidthTables(inputs.readable(Path(data)))


def _source(
    settings: Settings, data: str | None, prometheus: str | None, query: str, label: str, since_s: int, step_s: int
) -> "Source":
    from kopt.training.sources import FileSource, GeneratedSource, PrometheusSource

    if data and prometheus:
        usage_error("give --data or --prometheus, not both", "--data")
    if prometheus:
        if not query:
            usage_error(inputs.QUERY_NEEDED, "--query")
        return PrometheusSource(prometheus, query, since_s, step_s, label)
    if query:
        usage_error("--query goes with --prometheus", "--query")
    if data:
        return FileSource(inputs.readable(Path(data)))
    own = settings.home / "demand"
    return FileSource(own) if own.is_dir() else GeneratedSource()


def _answer(outcome: "TrainingOutcome", *, telling_slices: bool) -> Answer:
    """``telling_slices``: also slices that hold the same services as all of them do, which people need not read."""
    services = max((one.services for one in outcome.summaries), default=0)
    told = [one for one in outcome.summaries if telling_slices or one.slice == "all" or one.services < services]
    kind = ROWS[outcome.model.name]
    rows = [kind(**{part.name: getattr(one, part.name) for part in fields(kind)}) for one in told]
    champion = outcome.champion.version if outcome.champion else None
    verdict = "passed" if outcome.verdict.passed else "refused"
    facts = {
        "run": outcome.run, "version": int(outcome.model.version), "champion": int(champion) if champion else None,
        "promoted": outcome.promoted, "gate": verdict,
        "reasons": [reason.to_dict() for reason in outcome.verdict.reasons],
        "steps_computed": outcome.computed, "steps_kept": outcome.kept, "seconds": round(outcome.seconds, 1),
    }  # fmt: skip
    stays = f"version {champion} stays champion" if champion else "there is no champion"
    fate = "is champion now" if outcome.promoted else f"is challenger; {stays}"
    notes = [
        f"gate: {verdict}. {outcome.verdict.summary}",
        f"{outcome.model.name} version {outcome.model.version} {fate} ({outcome.seconds:.0f} s, "
        f"{outcome.computed} steps computed, {outcome.kept} kept)",
    ]
    return Answer("summaries", rows, facts, title="scores on what was held out", notes=notes, hidden_facts=True)
