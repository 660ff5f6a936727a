"""``kopt train``: data → features → folds → evaluation → gate → registered model, in one command."""

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import leave_on_sigterm, usage_error
from kopt.cli.home import make_home
from kopt.cli.options import Kubeconfig, Label, Output, Query, Since, Step
from kopt.cli.output import Answer, Format, show
from kopt.cli.progress import Steps
from kopt.cli.training import names
from kopt.cli.training.command import TrainInputs, command_of
from kopt.models.predictors import predictor_names
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.training.pipeline.progress import Event
    from kopt.training.pipeline.run import TrainingOutcome

STEPS = {
    "read": "read the data",
    "ray": "start Ray",
    "features": "compute features",
    "search": "search parameters",
    "fit": "fit and forecast folds",
    "champion": "replay the champion",
    "evaluate": "evaluate and judge",
    "register": "register",
}


_PREDICTORS = f"{', '.join(predictor_names()[:-1])} or {predictor_names()[-1]}."

Data = Annotated[
    str | None, typer.Option("--data", metavar="PATH", help="A folder, Parquet or CSV file, or public trace.")
]
Python = Annotated[
    str | None,
    typer.Option("--python", metavar="PATH", help="For sizing: the Python that the commands' scripts run in."),
]
Prometheus = Annotated[str | None, typer.Option("--prometheus", metavar="URL", help="A Prometheus server.")]
FromCluster = Annotated[
    bool,
    typer.Option("--from-cluster", help="What a cluster has measured itself: dry runs, pairs of nodes, logs, runs."),
]
Folds = Annotated[int, typer.Option("--folds", min=2, max=50, help="Fits for cross-validation, at most.")]
Trials = Annotated[int, typer.Option("--trials", min=0, max=1000, help="Parameter sets tried before.")]
Promote = Annotated[bool, typer.Option("--promote/--no-promote", help="Make it champion when it passes the gate.")]


def train(
    predictor: Annotated[str, typer.Argument(metavar="PREDICTOR", help=_PREDICTORS, autocompletion=names.completed)],
    data: Data = None,
    python: Python = None,
    prometheus: Prometheus = None,
    query: Query = "",
    label: Label = "service",
    since: Since = "30d",
    step: Step = "5m",
    from_cluster: FromCluster = False,
    kubeconfig: Kubeconfig = None,
    folds: Folds = 3,
    trials: Trials = 0,
    promote: Promote = True,
    output: Output = Format.TABLE,
) -> None:
    """Train a challenger, hold it against the champion, register it, and promote it where it is better.

    Without --data and --prometheus it trains on the services of this home (those on the pages), or on generated ones.
    The same command resumes a run that was interrupted. A model that the gate
    refuses is registered as challenger, with the reasons; that is no failure (status 0).

    Examples:

        kopt train demand --data /data/demand

        kopt train demand --prometheus http://prometheus:9090 --query 'sum by (service) (increase(requests[$step]))'

        kopt train sizing --data runs.csv --python /envs/train/bin/python

        kopt train sizing --from-cluster --prometheus http://prometheus:9090 --since 7d

        kopt train checkpoint --data /data/logs

        kopt train checkpoint --from-cluster

        kopt train bandwidth --data /data/topology

        kopt train bandwidth --from-cluster

        kopt train runtime --from-cluster
    """
    names.predictor(predictor, "PREDICTOR")
    settings = load_settings()
    train_inputs = TrainInputs(settings, data, python, prometheus, query, label, since, step, from_cluster, kubeconfig)
    command = command_of(predictor)
    if from_cluster and not command.reads_cluster:
        usage_error(f"a cluster keeps nothing that {predictor} is trained on", "--from-cluster")
    make_home(settings.home)
    source = command.source(train_inputs)
    from kopt.training.pipeline.run import TrainOptions
    from kopt.training.pipeline.run import train as run

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
            self._steps.sentence("interrupted; the same command resumes it")

    def progress(self, event: "Event") -> None:
        what = STEPS.get(event.step, event.step)
        if event.step not in self._running:
            self._steps.begin(event.step, what)
        counted = f" {event.done} of {event.total}" if event.total > 1 else ""
        kept = f", {event.kept} kept from before" if event.kept else ""
        if event.step == "ray" and event.message:
            self._steps.sentence(event.message)
        outcome = f"{event.message}{counted}{kept}".strip(" ,")
        self._running[event.step] = outcome
        self._steps.update(event.step, f"{what} {outcome}".rstrip())
        if event.done == event.total:
            self._steps.end(event.step, self._running.pop(event.step))


def _answer(outcome: "TrainingOutcome", *, telling_slices: bool) -> Answer:
    """``telling_slices``: also slices that hold the same services as all of them do, which people need not read."""
    services = max((summary.services for summary in outcome.summaries), default=0)
    results = [
        summary
        for summary in outcome.summaries
        if telling_slices or summary.slice == "all" or summary.services < services
    ]
    kind = command_of(outcome.model.name).row
    rows = [kind(**{part.name: getattr(item, part.name) for part in fields(kind)}) for item in results]
    champion = outcome.champion.version if outcome.champion else None
    gate = "passed" if outcome.decision.passed else "refused"
    header = {
        "run": outcome.run,
        "version": int(outcome.model.version),
        "champion": int(champion) if champion else None,
        "promoted": outcome.promoted,
        "gate": gate,
        "reasons": [reason.to_dict() for reason in outcome.decision.reasons],
        "steps_computed": outcome.computed,
        "steps_kept": outcome.kept,
        "seconds": round(outcome.seconds, 1),
    }
    stays = f"version {champion} stays champion" if champion else "there is no champion"
    fate = "is champion now" if outcome.promoted else f"is challenger; {stays}"
    remarks = [
        f"gate: {gate}. {outcome.decision.summary}",
        f"{outcome.model.name} version {outcome.model.version} {fate} ({outcome.seconds:.0f} s, "
        f"{outcome.computed} steps computed, {outcome.kept} kept)",
    ]
    return Answer("summaries", rows, header, title="scores on what was held out", remarks=remarks, hide_header=True)
