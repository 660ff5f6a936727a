"""``kopt controller staging``: data is there before a workload holds a GPU."""

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.edge import usage_error
from kopt.cli.options import seconds


def staging(
    image: Annotated[str, typer.Option(help="The image kopt-staging, which downloads.")],
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", metavar="FILE", help="The cluster; else KUBECONFIG, the pod, ~/.kube."),
    ] = None,
    mode: Annotated[str, typer.Option(help="For those that say nothing: observe, annotate (stages), enforce.")] = (
        "observe"
    ),
    at_once: Annotated[int, typer.Option(min=1, help="Downloads at a time.")] = 8,
    cache_path: Annotated[str, typer.Option(help="Folder on nodes for their copies.")] = "/var/lib/kopt-cache",
    node_budget: Annotated[str, typer.Option(metavar="SIZE", help="What copies may take of a node.")] = "",
    keep_unused: Annotated[str, typer.Option(metavar="SPAN", help="Copies unused for so long go; empty: none.")] = "",
    slow_retry: Annotated[str, typer.Option(metavar="SPAN", help="After a failure that somebody has to mend.")] = "10m",
    cpu: Annotated[str, typer.Option(help="That a download asks for.")] = "500m",
    memory: Annotated[str, typer.Option(help="That a download asks for.")] = "256Mi",
    memory_limit: Annotated[str, typer.Option(help="Of a download.")] = "2Gi",
    priority_class: Annotated[str, typer.Option(help="Of downloads; empty: the cluster's default.")] = "",
    queue: Annotated[str, typer.Option(help="LocalQueue of downloads, where all Jobs need one.")] = "",
    read_logs: Annotated[bool, typer.Option(help="Follow the downloads' logs for their progress.")] = True,
    host: Annotated[str, typer.Option(help="Interface of probes and metrics.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of probes and metrics; 0 takes a free one.")] = 9456,
    namespace: Annotated[str, typer.Option(envvar="POD_NAMESPACE", help="Where the Lease lies.")] = "kopt-system",
    identity: Annotated[str, typer.Option(envvar="POD_NAME", help="This replica's name in the Lease.")] = "",
) -> None:
    """Fetch what workloads need before they hold GPUs, and keep them out of their queue until it is complete.

    A workload asks by annotation, kaiwo.ai/staged-data: NAME or kaiwo.ai/stage: "SOURCE -> pvc://CLAIM/PATH", in
    namespaces with kaiwo.ai/managed: "true". Jobs without GPUs run `kopt stage`. In the mode annotate data is staged
    and nobody waits for it. `kopt off` gives back what is held.

    Examples:

        kopt controller staging --image registry.example.com/kopt-staging:0.1.0 --mode enforce
    """
    import uvloop

    from kopt.controllers.logs import log_to_stderr
    from kopt.controllers.staging.given import StagingSettings
    from kopt.controllers.staging.process import ProcessSettings, serve
    from kopt.core.decision import Mode
    from kopt.policies.staging.pod import PodSettings
    from kopt.policies.staging.rules import StagingRules

    if mode not in tuple(Mode):
        usage_error(f"{mode!r} is not a mode; there are {', '.join(Mode)}", "--mode")
    if not cache_path.startswith("/") or cache_path.rstrip("/") == "":
        usage_error("the path of a folder that is not the root", "--cache-path")
    try:
        rules = StagingRules(
            at_once=at_once, node_budget_bytes=_size(node_budget),
            slow_pause_s=float(seconds(slow_retry, "--slow-retry")),
            keep_unused_s=float(seconds(keep_unused, "--keep-unused")) if keep_unused else None,
        )  # fmt: skip
    except ValueError as error:
        usage_error(str(error), "--slow-retry")
    pods = PodSettings(image, cache_path.rstrip("/"), cpu, memory, memory_limit, priority_class, queue)
    settings = ProcessSettings(
        staging=StagingSettings(pods, Mode(mode), rules), namespace=namespace,
        identity=identity or f"{socket.gethostname()}-{os.getpid()}", kubeconfig=kubeconfig, host=host, port=port,
        reads_logs=read_logs,
    )  # fmt: skip
    log_to_stderr()
    uvloop.run(serve(settings))


def _size(text: str) -> int | None:
    from kopt.core.units import UnitError, parse_bytes

    try:
        return parse_bytes(text) if text else None
    except UnitError as error:
        usage_error(str(error), "--node-budget")
