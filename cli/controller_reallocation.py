"""``kopt controller reallocation``: what inference services lend to training, and take back in time."""

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.edge import usage_error
from kopt.cli.options import seconds


def reallocation(
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", metavar="FILE", help="The cluster; else KUBECONFIG, the pod, ~/.kube."),
    ] = None,
    predictions: Annotated[str, typer.Option(help="Prediction endpoint; empty: nothing is ever lent.")] = "",
    refresh: Annotated[str, typer.Option(metavar="SPAN", help="Forecasts are asked for so often.")] = "60s",
    stale: Annotated[str, typer.Option(metavar="SPAN", help="Older forecasts count as none.")] = "5m",
    host: Annotated[str, typer.Option(help="Interface of probes and metrics.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of probes and metrics; 0 takes a free one.")] = 9455,
    namespace: Annotated[str, typer.Option(envvar="POD_NAMESPACE", help="Where the Lease lies.")] = "kopt-system",
    identity: Annotated[str, typer.Option(envvar="POD_NAME", help="This replica's name in the Lease.")] = "",
) -> None:
    """Lend GPUs of inference services to pre-emptible training while forecasts allow it; take them back before a spike.

    LendingPools say which services and which queues, and in which mode: observe (the default), annotate, enforce. In
    enforce the queues' quotas are raised by what is lent; borrowers are asked to save, then stopped, those first who
    lose least, never one in a checkpoint write; they go on in the ledger's order. `kopt off` gives everything back.

    Examples:

        kopt controller reallocation --kubeconfig admin.conf --predictions http://127.0.0.1:8700
    """
    import uvloop

    from kopt.controllers.logs import log_to_stderr
    from kopt.controllers.reallocation.given import ControllerSettings
    from kopt.controllers.reallocation.process import ProcessSettings, serve

    refresh_s, stale_s = float(seconds(refresh, "--refresh")), float(seconds(stale, "--stale"))
    if not 1 <= refresh_s <= stale_s:
        usage_error("forecasts are asked for every second at most, and count for longer than that", "--refresh")
    settings = ProcessSettings(
        controller=ControllerSettings(refresh_s, stale_s), predictions=predictions, namespace=namespace,
        identity=identity or f"{socket.gethostname()}-{os.getpid()}", kubeconfig=kubeconfig, host=host, port=port,
    )  # fmt: skip
    log_to_stderr()
    uvloop.run(serve(settings))
