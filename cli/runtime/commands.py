"""``kopt runtime``: how long a job will run, what it is answered from, and how answers have held."""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused
from kopt.cli.job_log import opened_log
from kopt.cli.options import Output, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.runtime.backtest import backtest
from kopt.cli.runtime.importing import import_command
from kopt.core.units import format_span
from kopt.core.workload.run_time import JobKind, RunTimeError, RunTimeQuestion, StepProgress
from kopt.data.jobs.openb import TraceError
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.serving.contract.runtime_answers import RunTimeResponse, SecondsOut

app = typer.Typer(no_args_is_help=True, help="How long jobs run.")
app.command()(backtest)
app.command("import")(import_command)

Queue = Annotated[str, typer.Option("--queue", metavar="NAME", help="The queue that the job is in.")]
Gpus = Annotated[int, typer.Option("--gpus", min=0, max=1_000_000, help="GPUs of the whole job.")]
Name = Annotated[str, typer.Option("--name", metavar="TYPE", help="The type of the job: what is run again and again.")]
User = Annotated[str, typer.Option("--user", metavar="NAME", help="Whose job it is.")]
Cluster = Annotated[str, typer.Option("--cluster", metavar="NAME", help="The cluster whose runs count.")]


@dataclass(frozen=True)
class SpanRow:
    """Quantiles of one span."""

    span: str = column("")
    p05: float = column("5 %", show=format_span)
    p25: float = column("25 %", show=format_span)
    p50: float = column("50 %", show=format_span)
    p75: float = column("75 %", show=format_span)
    p95: float = column("95 %", show=format_span)


@dataclass(frozen=True)
class QueueRow:
    cluster: str = column("cluster")
    queue: str = column("queue")
    running: int = column("running")
    compared: int = column("compared")
    coverage: float | None = column("within 5-95 %", show=lambda share: f"{share:.0%}")
    loss_ratio: float | None = column("loss ÷ last 20", show=lambda ratio: f"{ratio:.2f}")
    drifted: bool = column("drifted", show=lambda has: "yes" if has else "no")
    starts: int = column("starts", drop=2)
    start_coverage: float | None = column("by p90", show=lambda share: f"{share:.0%}", drop=1)


@app.command("estimate")
def estimate(
    queue: Queue,
    gpus: Gpus,
    name: Name = "",
    user: User = "",
    cluster: Cluster = "",
    running: Annotated[str, typer.Option("--running", metavar="SPAN", help="For how long it has run: 90m, 2h.")] = "",
    log: Annotated[Path | None, typer.Option("--log", metavar="FILE", help="Its log, as far as it is written.")] = None,
    runs: Annotated[
        Path | None,
        typer.Option("--runs", metavar="TABLE", help="A table of jobs that ran, in place of the endpoint's."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """How long a job will run, or go on running, with quantiles and whose runs they rest on.

    The endpoint answers from the runs that it has been sent. With --runs no endpoint is needed: the model of this
    machine answers from a table with the columns job_id, start_time (or submit_time), end_time (or duration), gpus,
    and optionally queue, name, user and cluster. A log that shows its steps beats any history.

    Examples:

        kopt runtime estimate --queue research --gpus 8 --user ada

        kopt runtime estimate --queue research --gpus 8 --running 90m --log train.log

        kopt runtime estimate --queue research --gpus 8 --runs jobs.csv
    """
    progress = None if log is None else _progress(log)
    elapsed = float(seconds(running, "--running")) if running else 0.0
    kind = JobKind(queue, gpus, name, user)
    if runs is None:
        response = _from_endpoint(kind, cluster, elapsed, progress)
    else:
        response = _local(runs, kind, cluster, elapsed, progress)
    reasons = [reason.message for reason in response.reasons]
    if response.run_seconds is None or response.remaining_seconds is None:
        raise Refused(reasons[0])
    rows = [_row("run", response.run_seconds)]
    if elapsed or progress is not None:
        rows.append(_row("left", response.remaining_seconds))
    show(Answer("spans", rows, remarks=reasons, document=asdict(response)), output)


def _row(span: str, seconds_out: "SecondsOut") -> SpanRow:
    return SpanRow(span, seconds_out.p05, seconds_out.p25, seconds_out.p50, seconds_out.p75, seconds_out.p95)


def _local(
    table: Path, kind: JobKind, cluster: str, elapsed: float, progress: StepProgress | None
) -> "RunTimeResponse":
    from kopt.models.runtime.loading import load_run_time
    from kopt.sdk.run_time import run_time, runs_of
    from kopt.serving.contract.runtime_answers import RunTimeResponse

    try:
        runs = runs_of(table, cluster)
        if not runs:
            raise Refused(f"{table} has no run on a GPU")
        now_s = max(run.started_s if run.ended_s is None else run.ended_s for run in runs)
        model = load_run_time(settings=load_settings())
        answer = run_time(
            runs,
            kind.queue,
            kind.gpus,
            name=kind.name,
            user=kind.user,
            at_s=now_s,
            started_s=now_s - elapsed if elapsed else None,
            progress=None if progress is None else replace(progress, at_s=now_s),
            model=model,
        )
    except (TraceError, RunTimeError) as error:
        raise Refused(str(error)) from error
    except OSError as error:
        raise Refused(f"{table} cannot be read: {error.strerror or error}") from error
    return RunTimeResponse.of(answer, now_s, model.version)


def _from_endpoint(kind: JobKind, cluster: str, elapsed: float, progress: StepProgress | None) -> "RunTimeResponse":
    from kopt.cli.endpoint import endpoint
    from kopt.serving.client.transport import RequestRefused
    from kopt.serving.contract.common import AnswerError
    from kopt.serving.contract.runtime_answers import run_time_request

    now_s = time.time()
    question = RunTimeQuestion(kind, now_s, now_s - elapsed if elapsed else None, progress)
    try:
        with endpoint(load_settings()) as client:
            return client.runtime(run_time_request(question, cluster))
    except (RequestRefused, AnswerError) as error:
        raise Refused(str(error)) from error


def _progress(path: Path) -> StepProgress:
    """What a log shows. Raises Refused for one that does not show its steps."""
    from kopt.formats.joblog.progress import ProgressReader

    reader = ProgressReader()
    with opened_log(path) as lines:
        for line in lines:
            reader.read(line)
        written_s = path.stat().st_mtime
    progress = reader.progress()
    if progress is None and (progress := reader.progress(written_s)) is None:
        raise Refused(
            f"{path} does not show step k of N with times; leave --log out, or let the trainer write its progress bar"
        )
    # The log's clock may be that of another zone; the file's is this machine's.
    return StepProgress(progress.step, progress.steps, written_s, progress.step_seconds)


@app.command("queues")
def queues(output: Output = Format.TABLE) -> None:
    """How answers about each queue have held, and where the model has drifted.

    Examples:

        kopt runtime queues
    """
    from kopt.cli.endpoint import endpoint
    from kopt.serving.client.transport import RequestRefused
    from kopt.serving.contract.common import AnswerError

    try:
        with endpoint(load_settings()) as client:
            listed = client.runtime_queues().queues
    except (RequestRefused, AnswerError) as error:
        raise Refused(str(error)) from error
    rows = [QueueRow(**asdict(item)) for item in listed]
    show(Answer("queues", rows, empty="no run has ended yet; begin with a table: kopt runtime import jobs.csv"), output)
