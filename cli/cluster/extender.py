"""``kopt extender``: the process that a kube-scheduler asks where GPU pods should go."""

import os
import socket
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.cluster.classes import check_classes
from kopt.cli.cluster.process import recorded
from kopt.cli.cluster.workload_mode import WorkloadMode, may_lower_of
from kopt.cli.errors import usage_error
from kopt.cli.options import Kubeconfig
from kopt.core.decision import Mode

if TYPE_CHECKING:
    from kopt.controllers.extender.settings import ExtenderSettings


class Document(StrEnum):
    """What ``--print`` shows."""

    SCHEDULER = "scheduler"
    FENCE = "fence"


ModeOption = Annotated[Mode, typer.Option(help="observe records what it would choose; enforce chooses.")]
Rollout = Annotated[
    int, typer.Option(help="Percentage of workloads at most, whatever kopt features says; the others are observed.")
]
Shortlist = Annotated[int, typer.Option(help="Nodes that are left to the scheduler, the chosen one first.")]
Reserve = Annotated[float, typer.Option(help="Seconds for which a node that was named is kept for its pod.")]
Joint = Annotated[int, typer.Option(help="Waiting pods to plan together; 0 plans each by itself.")]
Host = Annotated[str, typer.Option(help="Interface to listen on.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")]
ProbePort = Annotated[
    int | None, typer.Option(help="A port of its own, without TLS, for probes, metrics and explanations.")
]
Tls = Annotated[
    Path | None,
    typer.Option("--tls", metavar="FOLDER", help="tls.crt and tls.key to show, ca.crt of those who may call."),
]
Elect = Annotated[bool, typer.Option(help="Elect one of several replicas.")]
Namespace = Annotated[str, typer.Option(envvar="POD_NAMESPACE", help="Where the Lease lies.")]
Pod = Annotated[str, typer.Option(envvar="POD_NAME", help="This replica's pod, labelled while it leads.")]
Identity = Annotated[str, typer.Option(help="This replica's name in the Lease; else the pod's.")]
PrometheusUrl = Annotated[
    str,
    typer.Option(
        "--prometheus",
        metavar="URL",
        help="Where the rules of `kopt alerts rules` are evaluated, for NodeSelectionPolicies that weigh use.",
    ),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="Bearer token for Prometheus; read for each query.")
]
Authority = Annotated[
    Path | None,
    typer.Option("--certificate-authority", metavar="FILE", help="CA of Prometheus' certificate; else the system's."),
]
Print = Annotated[
    Document | None,
    typer.Option(
        "--print", help="Print a kube-scheduler's configuration, or the admission policy that fences replicas, and end."
    ),
]


def extender(
    kubeconfig: Kubeconfig = None,
    mode: ModeOption = Mode.OBSERVE,
    rollout: Rollout = 100,
    workload_mode: WorkloadMode = "",
    shortlist: Shortlist = 1,
    reserve: Reserve = 60.0,
    joint: Joint = 0,
    host: Host = "127.0.0.1",
    port: Port = 9445,
    probe_port: ProbePort = None,
    tls: Tls = None,
    lease: Elect = True,
    namespace: Namespace = "kopt-system",
    pod: Pod = "",
    identity: Identity = "",
    prometheus: PrometheusUrl = "",
    token_file: TokenFile = None,
    certificate_authority: Authority = None,
    print_document: Print = None,
) -> None:
    """Tell a kube-scheduler which node, and which GPUs, each GPU pod should get.

    Answers filter, prioritize and bind; /explain?pod=NAMESPACE/NAME says why. When it does not run, or does not answer
    in time, pods are bound as the scheduler itself would.

    Examples:

        kopt extender --print scheduler > scheduler.yaml        for kube-scheduler --config scheduler.yaml

        kopt extender --print fence | kubectl apply -f -

        kopt extender --mode enforce
    """
    if print_document is not None:
        _print(print_document, f"{'https' if tls else 'http'}://{host}:{port}", namespace, joint)
        return
    import uvloop

    from kopt.cluster.client.prometheus import PrometheusAddress
    from kopt.cluster.runtime.http.tls_files import TlsError
    from kopt.cluster.runtime.lease import LeaseSettings
    from kopt.controllers.extender.calls.server import ServerSettings
    from kopt.controllers.extender.leadership import LeadershipSettings
    from kopt.controllers.extender.main import ProcessSettings, serve

    extender_settings = _settings(mode, rollout, workload_mode, shortlist, reserve, joint)
    check_classes()
    leadership = LeadershipSettings(
        LeaseSettings(6.0, 4.0, 1.0) if lease else None,
        namespace,
        identity or pod or f"{socket.gethostname()}-{os.getpid()}",
        pod,
    )
    server = ServerSettings(host, port, probe_port=probe_port, tls=tls)
    try:
        with recorded("extender"):
            address = PrometheusAddress(prometheus, token_file, certificate_authority)
            uvloop.run(serve(ProcessSettings(extender_settings, server, leadership, kubeconfig, prometheus=address)))
    except TlsError as error:
        usage_error(str(error), "--tls")


def _settings(
    mode: Mode, rollout: int, workload_mode: str, shortlist: int, reserve: float, joint: int
) -> "ExtenderSettings":
    from kopt.controllers.extender.settings import ExtenderSettings

    try:
        return ExtenderSettings(
            mode, rollout, shortlist, reserve, joint=joint, workload_may_lower=may_lower_of(workload_mode)
        )
    except ValueError as error:
        usage_error(str(error))


def _print(what: Document, url: str, namespace: str, joint: int) -> None:
    import yaml

    from kopt.controllers.extender.binding.request import fence
    from kopt.controllers.extender.configuration import scheduler_configuration
    from kopt.controllers.extender.leadership import LEASE

    documents = (
        fence(namespace, LEASE) if what is Document.FENCE else (scheduler_configuration(url, joint=bool(joint)),)
    )
    typer.echo(yaml.safe_dump_all(documents, sort_keys=False), nl=False)
