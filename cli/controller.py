"""``kopt controller NAME``: controllers that run in a cluster."""

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.controller_ledger import ledger
from kopt.cli.controller_pairs import pairs
from kopt.cli.controller_preemption import preemption
from kopt.cli.controller_reallocation import reallocation
from kopt.cli.controller_staging import staging
from kopt.cli.edge import usage_error
from kopt.cli.options import seconds

if TYPE_CHECKING:
    from kopt.controllers.sizing.given import SizingSettings

app = typer.Typer(no_args_is_help=True, help="Controllers that run in a cluster.")
app.command("pairs")(pairs)
app.command("preemption")(preemption)
app.command("ledger")(ledger)
app.command("staging")(staging)
app.command("reallocation")(reallocation)

Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", metavar="FILE", help="The cluster; else KUBECONFIG, the pod, ~/.kube.")
]
Namespace = Annotated[str, typer.Option(envvar="POD_NAMESPACE", help="Where the Lease lies.")]
Identity = Annotated[str, typer.Option(envvar="POD_NAME", help="This replica's name in the Lease.")]
AgentImage = Annotated[str, typer.Option(help="The image kopt-agents, which brings the profiler into pods.")]
Fractions = Annotated[
    bool, typer.Option(help="The cluster has an executor for kaiwo.ai/gpu-fraction (KAI, our extender).")
]


@app.callback()
def controllers() -> None:
    """Controllers that run in a cluster."""


@app.command("sizing")
def sizing(
    agent_image: AgentImage,
    kubeconfig: Kubeconfig = None,
    mode: Annotated[str, typer.Option(help="For jobs that say nothing: observe, annotate, or enforce (holds).")] = (
        "observe"
    ),
    duration: Annotated[str, typer.Option(metavar="SPAN", help="The longest that a dry run runs.")] = "5m",
    interval: Annotated[float, typer.Option(help="Seconds between its readings, at most 1.")] = 0.5,
    budget: Annotated[str, typer.Option(metavar="SPAN", help="The longest that a job is held.")] = "30m",
    priority_class: Annotated[str, typer.Option(help="Of profiling pods; empty: the cluster's default.")] = "",
    fractions: Fractions = False,
    read_logs: Annotated[bool, typer.Option(help="Look into failed pods' logs for out-of-memory errors.")] = True,
    predictions: Annotated[str, typer.Option(help="Prediction endpoint; empty: dry runs alone must do.")] = "",
    host: Annotated[str, typer.Option(help="Interface of probes and metrics.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of probes and metrics; 0 takes a free one.")] = 9446,
    namespace: Namespace = "kopt-system",
    identity: Identity = "",
) -> None:
    """Hold GPU Jobs of unknown size for a short dry run, write what they need, and let them go.

    Only Jobs with kaiwo.ai/mode: enforce in namespaces with kaiwo.ai/managed: "true" are held, never for longer than
    --budget; kaiwo.ai/profiling: "false" opts out. What waits in a queue of Kueue's is kept out of it meanwhile. `kopt
    off` gives everything back.

    Examples:

        kopt controller sizing --agent-image registry.example.com/kopt-agents:0.1.0 --mode enforce
    """
    import uvloop

    from kopt.controllers.logs import log_to_stderr
    from kopt.controllers.sizing.process import ProcessSettings, serve

    chosen = _sizing_settings(mode, (duration, budget), interval, agent_image, priority_class, fractions=fractions)
    log_to_stderr()
    settings = ProcessSettings(
        sizing=chosen, namespace=namespace, identity=identity or f"{socket.gethostname()}-{os.getpid()}",
        kubeconfig=kubeconfig, sizing_url=predictions, host=host, port=port, reads_logs=read_logs,
    )  # fmt: skip
    uvloop.run(serve(settings))


def _sizing_settings(
    mode: str, spans: tuple[str, str], interval_s: float, agent_image: str, priority_class: str, *, fractions: bool
) -> "SizingSettings":
    """What the options say about dry runs; ``spans`` are the longest dry run and the longest hold."""
    from kopt.controllers.sizing.given import SizingSettings
    from kopt.core.decision import Mode
    from kopt.policies.profiling import ProfilingSettings
    from kopt.policies.profiling_pod import DryRunSettings

    if mode not in tuple(Mode):
        usage_error(f"{mode!r} is not a mode; there are {', '.join(Mode)}", "--mode")
    if not 0 < interval_s <= 1:
        usage_error("a dry run reads every second or more often", "--interval")
    duration_s, budget_s = (float(seconds(*one)) for one in zip(spans, ("--duration", "--budget"), strict=True))
    try:
        policy = ProfilingSettings(duration_s=duration_s, budget_s=budget_s, fractions=fractions)
    except ValueError as error:
        usage_error(str(error), "--budget")
    dry_run = DryRunSettings(agent_image, priority_class, duration_s, max(60.0, budget_s - duration_s), interval_s)
    return SizingSettings(dry_run, policy, Mode(mode))
