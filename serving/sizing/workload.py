"""What a sizing question is about: the entrypoint, the kind of GPU, and what the workload asks for itself."""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.core.gpu import GpuModel
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.reason import Reason
from kopt.core.redaction import redact_arguments
from kopt.core.workload.executor import Executor
from kopt.core.workload.profile import JobType, normalised_command
from kopt.formats.entrypoint import Entrypoint, EntrypointError, Kind, pod_entrypoint, what_runs
from kopt.formats.pod_request import gpu_container, gpu_selected, pod_spec, requested_executor, requested_gpus, table
from kopt.formats.processes import Processes, Slots, count_processes
from kopt.models.sizing.estimate import DEFAULT_GPU
from kopt.serving.contract.schemas import ScriptWorkload, SizingRequest
from kopt.serving.http.problems import invalid


@dataclass(frozen=True)
class Workload:
    """``source`` is the script's text where the question holds it; ``problem`` why nothing to run was found.

    ``named``: the question says how the workload is called; else ``name`` is made of what it runs.
    """

    entrypoint: Entrypoint
    gpu: GpuModel
    processes: Processes
    name: str
    image: str = ""
    source: str | None = None
    problem: Reason | None = None
    reasons: tuple[Reason, ...] = ()
    named: bool = False
    executor: Executor = Executor.UNKNOWN
    """What hands out shares of a GPU where it runs."""
    manifest: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """As it was sent, where one was."""

    @functools.cached_property
    def job_type(self) -> str:
        """Digest of what decides the need; the text of a script counts by its own digest."""
        script = self.entrypoint.script
        if self.source is not None:
            script = f"sha256:{hashlib.sha256(self.source.encode(errors='replace')).hexdigest()}"
        command = (self.entrypoint.kind.value, script, *self.entrypoint.arguments)
        return JobType(self.image, command, self.gpu.name, self.processes.world_size).digest

    @property
    def identified(self) -> bool:
        """Whether the job type identifies the program: the file at a path may change."""
        return bool(self.image) or self.source is not None

    @property
    def command(self) -> tuple[str, ...]:
        """What is kept and shown of the command: without secrets and without source text."""
        script = "-c …" if self.entrypoint.kind is Kind.CODE else self.entrypoint.script
        return redact_arguments(normalised_command((script, *self.entrypoint.arguments)))


def read_workload(request: SizingRequest) -> Workload:
    """The question's workload. Raises Problem 422 for what cannot be one; nothing is executed, no file is read."""
    workload = request.workload
    if isinstance(workload, Mapping):
        return _manifest(request, workload)
    gpu, reasons = _gpu(request, None)
    try:
        if isinstance(workload, ScriptWorkload):
            entrypoint = Entrypoint(Kind.SCRIPT, workload.name, tuple(workload.arguments))
            source: str | None = workload.script
        else:
            entrypoint = what_runs(workload, no_file)
            source = entrypoint.script if entrypoint.kind is Kind.CODE else None
    except EntrypointError as error:
        raise invalid("workload", str(error)) from None
    processes = count_processes(entrypoint, no_file, explicit=request.world_size)
    name = request.name or entrypoint.script[:200]
    named, executor = request.name is not None, Executor(request.executor or Executor.UNKNOWN)
    return Workload(entrypoint, gpu, processes, name, source=source, reasons=reasons, named=named, executor=executor)


def _manifest(request: SizingRequest, manifest: Mapping[str, Any]) -> Workload:
    spec = pod_spec(manifest)
    container = gpu_container(spec)
    gpu, reasons = _gpu(request, gpu_selected(manifest))
    image = container.get("image")
    image = image[:1024] if isinstance(image, str) else ""
    problem = None
    try:
        entrypoint = pod_entrypoint(manifest, no_file)
    except EntrypointError as error:
        if not container:
            raise invalid("workload", str(error)) from None
        # A pod may run its image's own entrypoint: its need is unknown, but the request is valid.
        entrypoint, problem = Entrypoint(Kind.TOOL, image or "container"), Reason("NO_ENTRYPOINT", f"{error}.")
    except (TypeError, AttributeError, ValueError) as error:
        raise invalid("workload", f"this is no manifest of a pod ({type(error).__name__})") from None
    metadata = table(manifest.get("metadata"))
    explicit_name = request.name or metadata.get("name") or metadata.get("generateName")
    requested = requested_gpus(manifest)
    processes = count_processes(entrypoint, no_file, requested, request.world_size, _slots(request))
    if processes.of_pod is None and (requested.gpus or 1) > 1:
        # A script may start a process per GPU by itself, which its command does not show.
        text = f"Nothing says how many processes there are; one for each of the {requested.gpus} GPUs is assumed."
        reasons = (*reasons, Reason("PROCESSES_ASSUMED", text, {"world_size": processes.world_size}))
    source = entrypoint.script if entrypoint.kind is Kind.CODE else None
    name = str(explicit_name or entrypoint.script)[:253]
    executor = Executor(request.executor) if request.executor else requested_executor(manifest)
    named = bool(explicit_name)
    return Workload(entrypoint, gpu, processes, name, image, source, problem, reasons, named, executor, manifest)


def _slots(request: SizingRequest) -> Slots | None:
    return None if request.slots_per_node is None else Slots(request.nodes or 1, request.slots_per_node)


def _gpu(request: SizingRequest, selected: str | None) -> tuple[GpuModel, tuple[Reason, ...]]:
    if request.gpu is not None:
        try:
            return find_gpu(request.gpu), ()
        except UnknownGpuError as error:
            raise invalid("gpu", str(error)) from None
    if selected is not None:
        return find_gpu(selected), ()
    text = f"No GPU was named; {DEFAULT_GPU} is assumed."
    return find_gpu(DEFAULT_GPU), (Reason("GPU_ASSUMED", text, {"gpu": DEFAULT_GPU}),)


def no_file(_: str) -> None:
    """Paths in a command, of scripts and of configurations, are on the caller's machine: the server reads none."""
