"""``kopt controller ledger``: writes down who lost GPUs, to whom, and whether they are back."""

import os
import socket
from pathlib import Path
from typing import Annotated

import typer


def ledger(
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", metavar="FILE", help="The cluster; else KUBECONFIG, the pod, ~/.kube."),
    ] = None,
    keep: Annotated[str, typer.Option(metavar="SPAN", help="How long lines are kept; those that wait stay.")] = "30d",
    most: Annotated[int, typer.Option(help="At most so many lines; the oldest go.")] = 5000,
    host: Annotated[str, typer.Option(help="Interface of probes and metrics.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of probes and metrics; 0 takes a free one.")] = 9452,
    namespace: Annotated[str, typer.Option(envvar="POD_NAMESPACE", help="Where the Lease lies.")] = "kopt-system",
    identity: Annotated[str, typer.Option(envvar="POD_NAME", help="This replica's name in the Lease.")] = "",
) -> None:
    """Write an Eviction object for each GPU workload that loses its GPUs, by whomever, and when it is back.

    Kueue's pre-emptions and deactivations, suspended Jobs, evicted, drained and deleted pods, lost nodes, gangs that
    KAI takes away. Nothing is evicted or resumed by this. `kopt evictions` lists them.

    Examples:

        kopt controller ledger --kubeconfig admin.conf --keep 90d
    """
    import uvloop

    from kopt.cli.edge import usage_error
    from kopt.cli.options import seconds
    from kopt.controllers.ledger.process import ProcessSettings, serve
    from kopt.controllers.logs import log_to_stderr
    from kopt.policies.evictions import Keeping

    if most < 1:
        usage_error("at least one line is kept", "--most")
    settings = ProcessSettings(
        namespace=namespace, identity=identity or f"{socket.gethostname()}-{os.getpid()}", kubeconfig=kubeconfig,
        keeping=Keeping(float(seconds(keep, "--keep")), most), host=host, port=port,
    )  # fmt: skip
    log_to_stderr()
    uvloop.run(serve(settings))
