"""``kopt runtime import``: sends runs that are known elsewhere to the endpoint: of a table, MLflow or Prometheus."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import seconds
from kopt.cli.progress import bar, print_status
from kopt.cli.sizing.measured import read_token
from kopt.core.workload.run_time import JobRun
from kopt.data.jobs.openb import TraceError
from kopt.serving.base.environment import load_settings

_BATCH = 2_000
Runs = Mapping[str, Sequence[JobRun]]
"""By cluster; without a name that of ``--cluster``."""


def import_command(
    table: Annotated[
        Path | None, typer.Argument(metavar="[TABLE]", help="Jobs that ran: CSV, also .gz.", show_default=False)
    ] = None,
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="The cluster that they ran on, where the table says none.")
    ] = "",
    mlflow: Annotated[str, typer.Option("--mlflow", metavar="URL", help="Runs of an MLflow server; only read.")] = "",
    prometheus: Annotated[
        str, typer.Option("--prometheus", metavar="URL", help="Runs by the GPU exporters that this Prometheus scrapes.")
    ] = "",
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="How far back, without TABLE.")] = "90d",
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="A bearer token for the server.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", metavar="FILE", help="What the server's certificate is signed by.")
    ] = None,
    gpus_from: Annotated[
        list[str] | None,
        typer.Option("--gpus-from", metavar="NAME", help="With --mlflow: a parameter or tag that says the GPUs."),
    ] = None,
    gpus: Annotated[
        int, typer.Option("--gpus", min=0, max=1_000_000, help="With --mlflow: of runs that do not say; 0: left out.")
    ] = 0,
    queue: Annotated[
        str, typer.Option("--queue", metavar="NAME", help="With --mlflow: of runs without one; else their experiment.")
    ] = "",
) -> None:
    """Send runs to the endpoint, so that it can answer before it has seen any by itself.

    A TABLE has the columns job_id, start_time (or submit_time), end_time (or duration), gpus, and optionally queue,
    name, user and cluster; times are Unix seconds or ISO 8601. --mlflow reads a server's runs: experiment and script
    are the type, what was killed was interrupted. --prometheus reads when pods had GPUs. Sending again changes nothing.

    Examples:

        kopt runtime import jobs.csv --cluster east

        kopt runtime import --mlflow https://mlflow.example.com --token-file token --gpus-from world_size

        kopt runtime import --prometheus http://prometheus:9090 --since 30d

        sacct -aPX -S now-30days -o JobID,Start,End,AllocTRES | ./to_csv.sh > jobs.csv && kopt runtime import jobs.csv
    """
    if sum(map(bool, (table, mlflow, prometheus))) != 1:
        usage_error("give one of TABLE, --mlflow and --prometheus", "TABLE")
    if table is not None:
        _send(_of_table(table), cluster)
    elif mlflow:
        _send({"": _of_mlflow(mlflow, since, token_file, ca_file, gpus_from, gpus, queue)}, cluster)
    else:
        _send({"": _of_prometheus(prometheus, since, token_file, ca_file)}, cluster)


def _of_table(table: Path) -> Runs:
    from kopt.data.jobs.runs import read_runs

    try:
        by_cluster = read_runs(table)
    except TraceError as error:
        raise Refused(str(error)) from error
    except OSError as error:
        raise Refused(f"{table} cannot be read: {error.strerror or error}") from error
    if not any(by_cluster.values()):
        raise Refused(f"{table} has no run on a GPU")
    return by_cluster


def _of_mlflow(
    url: str,
    since: str,
    token_file: Path | None,
    ca_file: Path | None,
    gpus_from: Sequence[str] | None,
    gpus: int,
    queue: str,
) -> Sequence[JobRun]:
    from kopt.data.jobs.mlflow_runs import GPU_NAMES, MlflowQuery, MlflowReader, MlflowRunsError

    now_s = time.time()
    query = MlflowQuery(now_s - seconds(since, "--since"), tuple(gpus_from or GPU_NAMES), gpus, queue)
    try:
        with MlflowReader(url, token=read_token(token_file), authority=_authority(ca_file)) as reader:
            read = reader.read(query, now_s)
    except MlflowRunsError as error:
        raise Refused(str(error)) from error
    if read.without_gpus:
        names = ", ".join(query.gpu_names)
        print_status(f"{read.without_gpus:,} runs left out, as none of {names} says their GPUs: --gpus-from, --gpus")
    if read.unreadable:
        print_status(f"{read.unreadable:,} runs left out, as their times say nothing")
    if read.cut:
        print_status(f"only {query.most:,} runs were read; --since asks for fewer")
    if not read.runs:
        raise Refused("no run of the server says when it ran on how many GPUs")
    return read.runs


def _of_prometheus(url: str, since: str, token_file: Path | None, ca_file: Path | None) -> Sequence[JobRun]:
    from kopt.data.demand.prometheus import PrometheusError, Server
    from kopt.data.jobs.prometheus_runs import read_gpu_runs

    try:
        with Server(url, token=read_token(token_file), authority=_authority(ca_file)) as server:
            read = read_gpu_runs(server, float(seconds(since, "--since")), time.time())
    except PrometheusError as error:
        raise Refused(str(error)) from error
    if read.begun_before:
        print_status(f"{read.begun_before:,} runs left out, as they began before what was read")
    if not read.runs:
        raise Refused("no series of a GPU exporter names the pod of a job that began since then")
    return read.runs


def _send(by_cluster: Runs, cluster: str) -> None:
    from kopt.cli.endpoint import endpoint
    from kopt.serving.client.transport import RequestRefused
    from kopt.serving.contract.common import AnswerError

    total = sum(map(len, by_cluster.values()))
    kept = done = 0
    try:
        with endpoint(load_settings()) as client, bar("sending runs") as advance:
            for name, runs in sorted(by_cluster.items()):
                for at in range(0, len(runs), _BATCH):
                    part = runs[at : at + _BATCH]
                    kept += client.send_runs(part, name or cluster).kept
                    done += len(part)
                    advance(done, total)
    except (RequestRefused, AnswerError) as error:
        raise Refused(f"{error}; {done} of {total} runs were sent, and sending them again is harmless") from error
    print_status(f"{total:,} runs sent, {kept:,} of them new")


def _authority(path: Path | None) -> Path | None:
    if path is not None and not path.is_file():
        raise Refused(f"{path}: there is no such file")
    return path
