"""``kopt profile``: what a command truly needs of a GPU, by a dry run here, a recording, or Prometheus."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Output, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.core.units import format_bytes

if TYPE_CHECKING:
    from kopt.agents.profiler.readings import Reading
    from kopt.core.workload.profile import DryRun

_QUERY = (
    '{{__name__=~"DCGM_FI_DEV_FB_(USED|FREE|RESERVED|TOTAL)|DCGM_FI_DEV_(GPU|MEM_COPY)_UTIL|DCGM_FI_PROF_(SM|DRAM)_ACTIVE'
    '|(amd_)?gpu_(used|total)_vram|(amd_)?gpu_(gfx|umc)_activity|kopt_gpu_(memory_used_bytes|memory_total_bytes|busy_ratio|sm_active_ratio|dram_active_ratio)",{labels}}}'
)
_STEP_S = 15


@dataclass(frozen=True)
class ProfileRow:
    """One quantity of a profile, as people read it."""

    what: str = column("what")
    value: str = column("value")


def profile(
    command: Annotated[list[str] | None, typer.Argument(metavar="-- CMD…", help="What to run, behind --.")] = None,
    from_csv: Annotated[
        Path | None, typer.Option("--from-csv", metavar="FILE", help="A log of nvidia-smi --query-gpu … -l 1.")
    ] = None,
    prometheus: Annotated[
        str, typer.Option("--prometheus", metavar="URL", help="Where dcgm-exporter or AMD's exporter is scraped.")
    ] = "",
    pod: Annotated[str, typer.Option("--pod", metavar="NAMESPACE/POD", help="With --prometheus: whose metrics.")] = "",
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="With --prometheus: how far back.")] = "1h",
    duration: Annotated[str, typer.Option(metavar="SPAN", help="The longest that CMD runs.")] = "5m",
    interval: Annotated[float, typer.Option(help="Seconds between readings, at most 1.")] = 0.5,
    let_run: Annotated[bool, typer.Option("--let-run", help="Do not end CMD when it is steady.")] = False,
    source: Annotated[
        str, typer.Option(help="nvml, nvidia-smi, amdsmi, amd-smi or rocm-smi; default: what this machine has.")
    ] = "",
    append: Annotated[
        Path | None,
        typer.Option("--append", metavar="FILE", help="Add the command and its peak to a table to train on: runs.csv."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Measure the GPU memory and activity of a command's processes.

    CMD runs until it ends, until it is steady (memory and activity repeat), or for --duration; then it is ended. Its
    output goes to standard error. The JSON document is what `kopt estimate --with-profile FILE` reads.

    Examples:

        kopt profile -o json -- python train.py --batch-size 32 > profile.json

        kopt profile --append runs.csv -- python train.py --batch-size 32

        kopt profile --from-csv nvidia-smi.csv

        kopt profile --prometheus http://prometheus:9090 --pod research/train-0
    """
    sources = [bool(command), from_csv is not None, bool(prometheus)]
    if sum(sources) != 1:
        usage_error("give one of: a command behind --, --from-csv FILE, or --prometheus URL with --pod")
    if append is not None and not command:
        usage_error("--append keeps a command with its peak: give the command behind --", "--append")
    if prometheus:
        dry_run = _from_prometheus(prometheus, pod, seconds(since, "--since"))
    elif from_csv is not None:
        dry_run = _from_csv(from_csv)
    else:
        dry_run = _from_run(command or [], source, seconds(duration, "--duration"), interval, let_run)
    if append is not None:
        _append(append, command or [], dry_run)
    show(
        Answer("profile", _rows(dry_run), document=dry_run.to_dict(), remarks=dry_run.warnings, title="dry run"), output
    )


def _from_run(command: list[str], source: str, limit_s: int, interval_s: float, to_the_end: bool) -> "DryRun":
    import contextlib

    from kopt.agents.profiler.readings import SourceError
    from kopt.agents.profiler.run import RunSettings, profile_command
    from kopt.agents.profiler.sources import find_source
    from kopt.core.workload.profile import JobType

    try:
        settings = RunSettings(float(limit_s), interval_s, to_the_end=to_the_end)
    except ValueError as error:
        usage_error(str(error), "--interval")
    try:
        with contextlib.closing(find_source(source)) as measurements:
            return profile_command(command, measurements, settings, job_type=JobType("", tuple(command)).digest)
    except SourceError as error:
        raise Refused(f"{error}; without a GPU, `kopt estimate` predicts from the code") from error


def _append(path: Path, command: list[str], dry_run: "DryRun") -> None:
    import shlex

    from kopt.data.memory.commands import MeasuredCommand, append_measured_command, family_of
    from kopt.data.memory.table import MemoryDataError

    if not dry_run.usable:
        why = "it ran at the GPU's limit" if dry_run.profile.peak_bytes else "no GPU memory of it was seen"
        raise Refused(f"nothing is added to {path}, as the command's need is not known: {why}")
    line = shlex.join(command)
    run = MeasuredCommand(line, dry_run.profile.gpu, dry_run.profile.peak_bytes, Path.cwd(), family_of(line))
    try:
        append_measured_command(path.resolve(), run)
    except MemoryDataError as error:
        raise Refused(str(error)) from error


def _from_csv(path: Path) -> "DryRun":
    from kopt.agents.profiler.recorded import read_csv
    from kopt.formats.gpu_metrics import MetricsError

    try:
        readings = read_csv(path.read_text(encoding="utf-8", errors="replace"))
    except MetricsError as error:
        raise Refused(f"{path}: {error}") from error
    return _observed(readings, "csv")


def _from_prometheus(url: str, pod: str, since_s: int) -> "DryRun":
    import time

    from kopt.data.demand.prometheus import Server

    namespace, slash, name = pod.partition("/")
    if not slash or not namespace or not name or not all(c.isalnum() or c in "-." for c in namespace + name):
        usage_error("with --prometheus, --pod names NAMESPACE/POD", "--pod")
    if not url.startswith(("http://", "https://")):
        usage_error(f"{url!r} is not http://… or https://…", "--prometheus")
    now_s = time.time()
    # A scrape's own labels win over the exporter's, which then are called exported_….
    for labels in (f'namespace="{namespace}",pod="{name}"', f'exported_namespace="{namespace}",exported_pod="{name}"'):
        with Server(url) as server:
            result = server.query_range(_QUERY.format(labels=labels), now_s - since_s, now_s, _STEP_S)
        if result:
            return _observed(_readings(result, namespace, name), "prometheus")
    raise Refused(f"no series of dcgm-exporter or AMD's exporter for pod {pod} in the last {since_s} s; is it scraped?")


def _readings(matrix: list[dict[str, Any]], namespace: str, pod: str) -> "tuple[Reading, ...]":
    """What a range query answered, by time. Raises Refused for a malformed answer."""
    from kopt.agents.profiler.readings import Reading
    from kopt.formats.gpu_metrics import MetricsError, exporters

    by_time: dict[float, list[exporters.Series]] = {}
    try:
        for item in matrix:
            labels = {str(key): str(value) for key, value in item["metric"].items()}
            for at_s, value in item["values"]:
                by_time.setdefault(float(at_s), []).append((labels["__name__"], labels, float(value)))
        return tuple(
            Reading(at_s, exporters.samples_of(series, namespace, pod)) for at_s, series in sorted(by_time.items())
        )
    except (KeyError, TypeError, ValueError) as error:
        text = error if isinstance(error, MetricsError) else f"not an answer of Prometheus ({error})"
        raise Refused(str(text)) from error


def _observed(readings: "tuple[Reading, ...]", source: str) -> "DryRun":
    from kopt.agents.profiler.observation import Observation

    observation = Observation()
    for reading in readings:
        observation.take(reading)
    return observation.result(source=source)


def _rows(dry_run: "DryRun") -> list[ProfileRow]:
    profile, unknown = dry_run.profile, "–"
    shares = {
        "activity of SMs or CUs": (profile.activity, dry_run.activity),
        "memory bandwidth": (profile.bandwidth, dry_run.bandwidth),
    }
    rows = [
        ProfileRow("GPU", profile.gpu or unknown),
        ProfileRow("peak per GPU", format_bytes(profile.peak_bytes)),
        ProfileRow("memory of the GPU", format_bytes(dry_run.total_bytes) if dry_run.total_bytes else unknown),
        ProfileRow("GPUs used", str(dry_run.gpus)),
        ProfileRow("seen for", f"{profile.duration_s:.0f} s, {profile.samples} readings"),
        ProfileRow("steady", "yes" if profile.steady else "no: later phases may need more"),
    ]
    for name, (mean, spread) in shares.items():
        text = (
            unknown if mean is None else f"{mean:.0%}" + (f" (95 % of the time ≤ {spread.p95:.0%})" if spread else "")
        )
        rows.append(ProfileRow(name, text))
    if dry_run.out_of_memory or dry_run.capped:
        rows.append(ProfileRow("limit", "ran out of memory" if dry_run.out_of_memory else "ran at the GPU's limit"))
    if dry_run.exit_status is not None:
        rows.append(ProfileRow("exit status of CMD", str(dry_run.exit_status)))
    return rows
