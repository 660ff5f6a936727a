"""Commands whose GPU memory a cluster has measured: by dry runs, and by the exporters that Prometheus scrapes."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.training.from_cluster import Imported
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.redaction import redact_arguments
from kopt.core.units import WHOLE_GPU, format_span
from kopt.core.workload.profile import LONGEST_COMMAND, normalised_command
from kopt.data.memory.commands import MeasuredCommand, family_of
from kopt.formats.entrypoint import EntrypointError, Kind, what_runs

if TYPE_CHECKING:
    from kopt.cli.sizing.measured import Measurements
    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object
    from kopt.controllers.overview.running_workloads import PodKind

_NO_COMMAND = "the release that made it did not keep the command; the next dry run of its type does"
_FULL = 0.97
"""Of a GPU's memory: a run that held more may have wanted more."""

Runs = Imported[MeasuredCommand]


async def dry_runs(kube: "Kube", folder: Path) -> Runs:
    """A row for each SizingProfile that tells a need. ``folder``: where the table will lie. Raises ApiError."""
    from kopt.cluster.client.api import NotFound
    from kopt.controllers.sizing.profiles import SIZING_PROFILES

    result = Runs()
    try:
        async for page in kube.pages(SIZING_PROFILES):
            for document in page.items:
                _add_profile(result, document, folder)
    except NotFound:
        result.leave_out("SizingProfiles", "the cluster has no such objects: the chart's `sizing` makes them")
    return result


def _add_profile(result: Runs, document: "Object", folder: Path) -> None:
    from kopt.controllers.sizing.profiles import learned_of

    metadata = document.get("metadata") or {}
    name = f"{metadata.get('namespace')}/{metadata.get('name')}"
    try:
        learned = learned_of(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        result.leave_out(name, f"it cannot be read ({error})")
        return
    if learned is None or learned.run is None:
        result.leave_out(name, "its dry run failed")
        return
    run = learned.run
    why = _unusable(learned.command)
    if not run.usable:
        why = "it ran at the GPU's limit" if run.profile.peak_bytes else "no GPU memory of it was seen"
    elif not run.profile.steady:
        why = "it was ended before it was steady: later phases may need more"
    elif not learned.command:
        why = _NO_COMMAND
    try:
        gpu = find_gpu(run.profile.gpu).name
    except UnknownGpuError as error:
        why = why or str(error)
    if why:
        result.leave_out(name, why)
        return
    line = shlex.join(learned.command)
    processes = max(1, run.world_size)
    result.rows.append(MeasuredCommand(line, gpu, run.profile.peak_bytes, folder, family_of(line), processes=processes))


async def running_pods(kube: "Kube", measurements: "Measurements", folder: Path) -> Runs:
    """A row for each kind of pods that an exporter has watched for long enough. Raises ApiError."""
    from kopt.controllers.overview.running_workloads import running

    result = Runs()
    async for pod_kind in running(kube):
        _add_pods(result, pod_kind, measurements, folder)
    return result


def _add_pods(result: Runs, pod_kind: "PodKind", measurements: "Measurements", folder: Path) -> None:
    from kopt.cluster.objects.fields import texts
    from kopt.cluster.workloads.pod_sizing import gpu_container
    from kopt.policies.sizing.measured import ENOUGH_S

    name = f"{pod_kind.workload.namespace}/{pod_kind.label}"
    use, container = measurements.use_of(pod_kind), gpu_container(pod_kind.workload, pod_kind.pods)
    if use is None or container is None:
        result.leave_out(name, "it is not measured: no series names its pods")
        return
    arguments = redact_arguments(normalised_command(texts(container[1], "command") + texts(container[1], "args")))
    why = _unusable(arguments) if arguments else "its command is in its image"
    try:
        gpu = find_gpu(pod_kind.gpu or use.gpu)
    except UnknownGpuError as error:
        result.leave_out(name, error)
        return
    if use.partition or use.shared or pod_kind.pods.gpus % WHOLE_GPU:
        why = "it runs on a part of a GPU, or on one that others may share"
    elif use.measured_s < ENOUGH_S:
        why = f"it was measured for less than {format_span(ENOUGH_S)}"
    elif use.peak_bytes >= _FULL * gpu.usable_bytes:
        why = "it ran at the GPU's limit"
    if why:
        result.leave_out(name, why)
        return
    line = shlex.join(arguments)
    result.rows.append(
        MeasuredCommand(line, gpu.name, use.peak_bytes, folder, family_of(line), processes=_processes(pod_kind))
    )


def _processes(pod_kind: "PodKind") -> int:
    """One for each GPU; replicas of a service do not work together."""
    gpus = pod_kind.pods.gpus // WHOLE_GPU
    together = pod_kind.resource.kind not in ("Deployment", "StatefulSet", "InferenceService")
    return max(1, gpus * (pod_kind.pods.pods if together else 1))


def of_tools(runs: Iterable[MeasuredCommand]) -> tuple[list[MeasuredCommand], list[MeasuredCommand]]:
    """Those that formulas can read, and those of scripts: these lie in images, and what somebody wrote into an object
    of a cluster is not run here."""
    tools: list[MeasuredCommand] = []
    scripts: list[MeasuredCommand] = []
    for run in runs:
        (tools if _is_tool(run.command) else scripts).append(run)
    return tools, scripts


def _is_tool(command: str) -> bool:
    try:
        return what_runs(command, lambda _: None).kind is Kind.TOOL
    except EntrypointError:
        return False


def _unusable(command: Sequence[str]) -> str:
    """Why a command is none that a table can hold: users write what stands in objects."""
    if any("\0" in word for word in command):
        return "its command holds a NUL character"
    return "its command is too long" if sum(map(len, command)) > LONGEST_COMMAND else ""
