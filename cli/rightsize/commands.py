"""``kopt rightsize``: CPU, memory and width of running GPU workloads, changed and watched."""

import contextlib
import os
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.errors import Edge, Refused, usage_error
from kopt.cli.interruption import run_interruptibly, with_kube
from kopt.cli.options import Kubeconfig, Output, PrometheusToken, seconds
from kopt.cli.output import Format, show
from kopt.cli.progress import print_status
from kopt.core.workload.rightsizing import Batch, Lever

if TYPE_CHECKING:
    from kopt.cli.rightsize.widths import WidthCandidate
    from kopt.cluster.client.api import Kube
    from kopt.cluster.workloads.resizing.use import Use
    from kopt.controllers.rightsizing.candidates import Candidate

app = typer.Typer(
    cls=Edge, no_args_is_help=True, help="Change CPU, memory and width of running GPU workloads, and watch."
)
Url = Annotated[
    str, typer.Option("--prometheus", metavar="URL", help="Where the kubelets' cAdvisor is scraped: CPU and memory.")
]
Since = Annotated[str, typer.Option("--since", metavar="SPAN", help="How far back use is read.")]
Namespace = Annotated[str, typer.Option("-n", "--namespace", help="Only this namespace; default: all.")]
Workload = Annotated[str, typer.Argument(metavar="KIND/NAME", help="Such as job/finetune.")]
BatchOption = Annotated[
    Batch | None, typer.Option("--batch", help="What becomes of a step's batch; default: as the job's annotation says.")
]
_SHORTEST_S = 3600


class Changed(StrEnum):
    """What ``apply`` changes."""

    CPU = "cpu"
    MEMORY = "memory"
    WIDTH = "width"


@app.command("plan")
def plan(
    workload: Annotated[str, typer.Argument(metavar="[KIND/NAME]", help="Only this one.")] = "",
    prometheus: Url = "",
    since: Since = "24h",
    everything: Annotated[bool, typer.Option("--all", help="Also what is not changed, and why.")] = False,
    check: Annotated[bool, typer.Option(help="Ask the API server whether it would take each change.")] = True,
    batch: BatchOption = None,
    namespace: Namespace = "",
    token_file: PrometheusToken = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what would be changed of CPU, memory and width of running GPU workloads, and why. Changes nothing.

    With --prometheus: CPU requests follow the 95th percentile of what containers used, memory its maximum, each with
    15 % more. At most half is taken away at once; a pod's QoS class stays, and no container is restarted.

    Elastic jobs (kaiwo.ai/elastic-width, elasticPolicy) may have one worker more where GPUs idle and it would be
    useful, or one fewer where others are pending or the last one is not; what starting again costs is in the sum.

    Examples:

        kopt rightsize plan --batch per-worker

        kopt rightsize plan --prometheus http://prometheus:9090

        kopt rightsize plan job/finetune -n research --prometheus http://prometheus:9090 --since 7d --all -o json
    """
    from kopt.cli.rightsize.view import plan_answer

    if token_file is not None and not prometheus:
        usage_error("it is for --prometheus, which is not given", "--token-file")
    span_s = _span(since)
    rows, refusals, widths = run_interruptibly(
        _planned(prometheus, span_s, token_file, kubeconfig, namespace, workload, check=check, batch=batch)
    )
    answer = plan_answer(rows, refusals, widths, everything=everything, is_measured=bool(prometheus))
    show(answer, output)


@app.command("apply")
def apply(
    workload: Workload,
    prometheus: Url = "",
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="The workload's.")] = "default",
    resource: Annotated[
        Changed | None, typer.Option(help="Default: CPU or memory, whichever gives back the larger share.")
    ] = None,
    width: Annotated[
        int | None, typer.Option(metavar="WORKERS", help="With --resource width: one more or one fewer, to be tried.")
    ] = None,
    batch: BatchOption = None,
    container: Annotated[str, typer.Option(metavar="NAME", help="Where several could be changed.")] = "",
    tolerance: Annotated[
        float, typer.Option(min=0.5, max=50, metavar="PERCENT", help="Slower by less than this is not slower.")
    ] = 3.0,
    since: Since = "24h",
    token_file: PrometheusToken = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Change CPU, memory or width of one workload, watch its steps, and keep the change or take it back.

    Steps are read from the log (step 1200/5000, progress bars), else from the annotations of the log agent. The change
    stays where steps are shown not to be slower; it is taken back where they are, or nothing is shown within nine
    minutes, a container restarts, or no step is done. Ctrl-C takes it back, too. Exit status 0: kept.

    Pods that are made later have the size of their template: the last line says what to change there.

    The width of an elastic job changes by one worker, at a moment that the log agent calls safe, and its workers start
    again from the last checkpoint. It stays where each GPU is shown to do about as much as before.

    Examples:

        kopt rightsize apply job/finetune -n research --resource width --batch per-worker

        kopt rightsize apply job/finetune -n research --prometheus http://prometheus:9090

        kopt rightsize apply job/finetune -n research --resource memory --prometheus http://prometheus:9090
    """
    from kopt.cli.rightsize.view import applied_answer, applied_width_answer
    from kopt.policies.rightsizing.watch import Action

    if resource is Changed.WIDTH:
        others: dict[str, object] = {"--prometheus": prometheus, "--container": container, "--token-file": token_file}
        text = "it goes with CPU and memory, not with --resource width"
    else:
        others, text = {"--width": width, "--batch": batch}, "it goes with --resource width"
    for option, given in others.items():
        if given not in (None, ""):
            usage_error(text, option)
    if resource is Changed.WIDTH:
        of_width, decision = run_interruptibly(_applied_width(kubeconfig, namespace, workload, batch, width))
        answer = applied_width_answer(of_width, decision)
    else:
        _require_prometheus(prometheus)
        lever = None if resource is None else Lever(resource.value)
        question = (prometheus, _span(since), token_file, kubeconfig, namespace, workload)
        candidate, decision = run_interruptibly(
            _applied(*question, lever=lever, container=container, tolerance=tolerance / 100)
        )
        answer = applied_answer(candidate, decision)
    show(answer, output)
    if decision.action is not Action.KEEP:
        raise typer.Exit(1)


@app.command("undo")
def undo(
    workload: Workload,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="The workload's.")] = "default",
    now: Annotated[
        bool, typer.Option("--now", help="A width also at a moment that is not safe: work is lost.")
    ] = False,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Take back the last change of a workload that stands: one that was kept, or left open.

    Of a width only at a moment that the log agent calls safe, as workers start again; --now does not ask.

    Examples:

        kopt rightsize undo job/finetune -n research
    """
    from kopt.cli.rightsize.history import taken_back

    print_status(
        run_interruptibly(
            with_kube(kubeconfig, lambda kube: taken_back(kube, namespace, workload, print_status, at_once=now))
        )
    )


@app.command("history")
def history(namespace: Namespace = "", kubeconfig: Kubeconfig = None, output: Output = Format.TABLE) -> None:
    """List the changes of pods that run and of elastic jobs, and what came of each, the newest first.

    Events on the workloads (ResizeApplied, ResizeKept, ResizeUndone) say the same.

    Examples:

        kopt rightsize history -n research
    """
    from kopt.cli.rightsize.history import history_answer

    show(run_interruptibly(with_kube(kubeconfig, lambda kube: history_answer(kube, namespace))), output)


def _span(since: str) -> int:
    span_s = seconds(since, "--since")
    if span_s < _SHORTEST_S:
        usage_error("less than an hour says nothing about what a workload needs", "--since")
    return span_s


def _require_prometheus(url: str) -> None:
    if not url:
        usage_error("CPU and memory are measured there; only --resource width does without", "--prometheus")


async def _read(
    kube: "Kube", url: str, span_s: int, token_file: Path | None, namespace: str, workload: str
) -> "list[Candidate]":
    from kopt.cli.rightsize.reading import read_candidates
    from kopt.cluster.client.prometheus import Prometheus, PrometheusError, token_of
    from kopt.cluster.workloads.resizing.use import read_use

    try:
        async with Prometheus(url, token=token_of(token_file), timeout_s=60.0) as prometheus:
            use: Use = await read_use(prometheus, namespace, span_s)
    except PrometheusError as error:
        raise Refused(f"measured use cannot be read: {error}") from error
    result = await read_candidates(kube, use, time.time(), namespace, workload)
    if workload and not result:
        raise _not_running(workload, namespace)
    return result


def _not_running(workload: str, namespace: str) -> Refused:
    location = f"namespace {namespace}" if namespace else "any namespace"
    return Refused(f"no pod of a workload {workload} with GPUs runs in {location}; `kopt rightsize plan` lists them")


async def _planned(
    url: str,
    span_s: int,
    token_file: Path | None,
    kubeconfig: Path | None,
    namespace: str,
    workload: str,
    *,
    check: bool,
    batch: Batch | None,
) -> "tuple[list[Candidate], dict[int, str], list[WidthCandidate]]":
    """And by the index of a candidate why the API server would not take it. Without a ``url``: widths alone."""
    from kopt.cli.rightsize.widths import read_widths
    from kopt.cluster.client.api import ApiError
    from kopt.cluster.workloads.resizing.pods import ResizedPods

    async def work(kube: "Kube") -> "tuple[list[Candidate], dict[int, str], list[WidthCandidate]]":
        candidates = await _read(kube, url, span_s, token_file, namespace, workload) if url else []
        refusals: dict[int, str] = {}
        for index, candidate in enumerate(candidates):
            if check and candidate.resize is not None:
                try:
                    await ResizedPods(kube, candidate.pods, candidate.resize, time.time).check()
                except ApiError as error:
                    refusals[index] = str(error)
        widths = await read_widths(kube, time.time(), namespace, workload, batch=batch)
        if workload and not widths:
            raise _not_running(workload, namespace)
        return candidates, refusals, widths

    return await with_kube(kubeconfig, work)


async def _applied(
    url: str,
    span_s: int,
    token_file: Path | None,
    kubeconfig: Path | None,
    namespace: str,
    workload: str,
    *,
    lever: Lever | None,
    container: str,
    tolerance: float,
) -> Any:
    from dataclasses import replace

    from kopt.cli.cluster.process import AUDIT_URL, recorded
    from kopt.cli.rightsize.apply import ApplySettings
    from kopt.cli.rightsize.apply import apply as apply_change
    from kopt.cli.rightsize.choice import select

    settings = ApplySettings()
    settings = replace(settings, watch=replace(settings.watch, tolerance=tolerance))

    async def work(kube: "Kube") -> Any:
        candidates = await _read(kube, url, span_s, token_file, namespace, workload)
        candidate = select(candidates, lever, container)
        decision = await apply_change(kube, candidate, settings, print_status)
        return candidate, decision

    # The audit log of a cluster is told where there is one; nobody reads its lines on a terminal.
    with recorded("rightsize") if os.environ.get(AUDIT_URL) else contextlib.nullcontext():
        return await with_kube(kubeconfig, work)


async def _applied_width(
    kubeconfig: Path | None, namespace: str, workload: str, batch: Batch | None, target: int | None
) -> Any:
    from kopt.cli.cluster.process import AUDIT_URL, recorded
    from kopt.cli.rightsize.width_watch import WidthApplySettings, apply_width, select_width
    from kopt.cli.rightsize.widths import read_widths

    async def work(kube: "Kube") -> Any:
        candidates = await read_widths(kube, time.time(), namespace, workload, batch=batch, target=target)
        candidate = select_width(candidates, workload)
        return candidate, await apply_width(kube, candidate, WidthApplySettings(), print_status)

    with recorded("rightsize") if os.environ.get(AUDIT_URL) else contextlib.nullcontext():
        return await with_kube(kubeconfig, work)
