"""``kopt controller pairs``: measures what pairs of nodes reach together."""

import os
import socket
from pathlib import Path
from typing import Annotated

import typer


def pairs(
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", metavar="FILE", help="The cluster; else KUBECONFIG, the pod, ~/.kube."),
    ] = None,
    tests_namespace: Annotated[str, typer.Option(help="Where Jobs of tests run.")] = "kopt-benchmarks",
    predictions: Annotated[str, typer.Option(help="Prediction endpoint that is told of results; empty: none.")] = "",
    cluster: Annotated[str, typer.Option(help="By which name the endpoint knows this cluster.")] = "default",
    host: Annotated[str, typer.Option(help="Interface of probes and metrics.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of probes and metrics; 0 takes a free one.")] = 9449,
    pause: Annotated[str, typer.Option(metavar="SPAN", help="Before a test that gave way is tried again.")] = "60s",
    namespace: Annotated[str, typer.Option(envvar="POD_NAMESPACE", help="Where the Lease lies.")] = "kopt-system",
    identity: Annotated[str, typer.Option(envvar="POD_NAME", help="This replica's name in the Lease.")] = "",
) -> None:
    """Run nccl-tests or rccl-tests between pairs of nodes, keep what they reach, and name slow pairs and sick nodes.

    What is measured, when and at what cost say PairwiseBenchmarks (`kubectl explain pairwisebenchmark.spec`). Nodes
    take part when no pod has their GPUs; a test is given up as soon as a pod waits for them. Results stand in
    NodeBandwidths, named like the nodes, and are told to --predictions. `kopt off` ends the tests.

    Examples:

        kopt controller pairs --kubeconfig admin.conf --tests-namespace kopt-benchmarks
    """
    import uvloop

    from kopt.cli.options import seconds
    from kopt.controllers.logs import log_to_stderr
    from kopt.controllers.pairs.process import ProcessSettings, serve

    settings = ProcessSettings(
        namespace=namespace, tests_namespace=tests_namespace,
        identity=identity or f"{socket.gethostname()}-{os.getpid()}", kubeconfig=kubeconfig,
        predictions_url=predictions, cluster=cluster, host=host, port=port,
        taken_pause_s=float(seconds(pause, "--pause")),
    )  # fmt: skip
    log_to_stderr()
    uvloop.run(serve(settings))
