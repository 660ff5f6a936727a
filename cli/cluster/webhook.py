"""``kopt webhook``: the admission webhooks of a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.cluster.classes import check_classes
from kopt.cli.cluster.process import recorded
from kopt.cli.errors import usage_error
from kopt.cli.options import Kubeconfig

_SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def webhook(
    kubeconfig: Kubeconfig = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT that the API server reaches over TLS.")] = "127.0.0.1:9443",
    probes: Annotated[int, typer.Option(help="Port of /healthz, /readyz and /metrics, in plain.")] = 9444,
    url: Annotated[str, typer.Option(help="Outside a cluster: https://HOST:PORT that the API server reaches.")] = "",
    service: Annotated[
        str, typer.Option(help="Inside a cluster: the Service in front of all replicas.")
    ] = "kopt-webhook",
    namespace: Annotated[str, typer.Option(help="Where certificate and Service lie; default: the pod's own.")] = "",
    register: Annotated[bool, typer.Option(help="Write the webhook configurations into the cluster.")] = True,
    audit: Annotated[bool, typer.Option(help="Count the GPUs that bypass the queues (kopt_rogue_gpus).")] = True,
    sizing: Annotated[str, typer.Option(help="Prediction endpoint for size recommendations; empty: none.")] = "",
    client_ca: Annotated[
        Path | None,
        typer.Option("--client-ca", metavar="FILE", help="Only callers with a certificate of this CA; else all."),
    ] = None,
    drain: Annotated[float, typer.Option(help="Seconds between the signal to end and closing.")] = 5.0,
    reuse_port: Annotated[bool, typer.Option(help="Several processes on one port.")] = False,
) -> None:
    """Serve the admission webhooks: queue labels, scheduler names, recommendations.

    Ends with SIGTERM. With no replica alive, pods are created exactly as written.

    Examples:

        kopt webhook --listen 0.0.0.0:9443        in a pod of the chart

        kopt webhook --kubeconfig admin.conf --url https://127.0.0.1:9443 --namespace kopt-system
    """
    import uvloop

    from kopt.cluster.admission.address import Address
    from kopt.cluster.client.client_authority import ClientAuthorityError
    from kopt.controllers.admission.main import WebhookSettings, serve
    from kopt.controllers.admission.server import ServerSettings

    host, port = _host_and_port(listen)
    own_namespace = namespace or _own_namespace()
    address = Address(own_namespace, service, url=url)
    names = (f"{service}.{own_namespace}.svc", f"{service}.{own_namespace}.svc.cluster.local", *_host_of(url))
    server = ServerSettings(host, port, probes, reuse_port, drain)
    check_classes()
    settings = WebhookSettings(
        address,
        names,
        server,
        kubeconfig=kubeconfig,
        registers=register,
        audits=audit,
        sizing_url=sizing,
        client_ca=client_ca,
    )
    try:
        with recorded("webhook"):
            uvloop.run(serve(settings))
    except ClientAuthorityError as error:
        usage_error(str(error), "--client-ca")


def _host_and_port(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise typer.BadParameter(f"{listen!r} is not HOST:PORT", param_hint="--listen")
    return host.strip("[]"), int(port)


def _host_of(url: str) -> tuple[str, ...]:
    from urllib.parse import urlsplit

    host = urlsplit(url).hostname if url else None
    if url and (not url.startswith("https://") or host is None):
        raise typer.BadParameter(f"{url!r} is not https://HOST:PORT", param_hint="--url")
    return (host,) if host else ()


def _own_namespace() -> str:
    if _SERVICE_ACCOUNT_NAMESPACE.is_file():
        return _SERVICE_ACCOUNT_NAMESPACE.read_text(encoding="ascii").strip()
    return "kopt-system"
