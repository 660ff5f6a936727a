"""``kopt controller preemption``: whom a waiting workload takes the place of."""

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.edge import usage_error
from kopt.cli.options import seconds

if TYPE_CHECKING:
    from kopt.controllers.preemption.holding import HoldSettings


def preemption(
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", metavar="FILE", help="The cluster; else KUBECONFIG, the pod, ~/.kube."),
    ] = None,
    mode: Annotated[str, typer.Option(help="For workloads that say nothing: observe, annotate, or enforce.")] = (
        "observe"
    ),
    budget: Annotated[str, typer.Option(metavar="SPAN", help="A workload waits so long for a better moment.")] = "5m",
    cover: Annotated[str, typer.Option(metavar="SPAN", help="Kueue has so long to take the chosen.")] = "60s",
    plain_pods: Annotated[
        bool, typer.Option("--plain-pods", help="Also for plain pods whose class has preemptionPolicy: Never.")
    ] = False,
    kai: Annotated[bool, typer.Option("--kai", help="Also for pods of KAI's queues, ahead of KAI's own rule.")] = False,
    service: Annotated[str, typer.Option(help="Service by which the API server reaches the reviews.")] = "",
    url: Annotated[str, typer.Option(metavar="HTTPS_URL", help="Where it reaches them outside a cluster.")] = "",
    review_port: Annotated[int, typer.Option(help="Port of the reviews.")] = 9453,
    host: Annotated[str, typer.Option(help="Interface of reviews, probes and metrics.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of probes and metrics; 0 takes a free one.")] = 9454,
    namespace: Annotated[str, typer.Option(envvar="POD_NAMESPACE", help="Where the Lease lies.")] = "kopt-system",
    identity: Annotated[str, typer.Option(envvar="POD_NAME", help="This replica's name in the Lease.")] = "",
) -> None:
    """Have Kueue pre-empt those who lose least work, at the best moment within the budget, and nobody in a write.

    What running jobs would lose comes from `kopt agent logtail`. In the mode enforce, and in namespaces with
    kaiwo.ai/managed: "true" only, a Workload that needs others' room is held for at most --budget; then all but the
    chosen have a higher priority until Kueue has taken these, for at most --cover. After that Kueue goes by its own
    rules. It needs --service or --url. `kopt off` gives back every priority and lets go what is held. Jobs whose
    pods say kaiwo.ai/saves-on-request: "true" are asked to save first, and waited for within --budget.

    With --plain-pods it also makes room for pods that wait under kube-scheduler without being in a queue, where their
    PriorityClass has preemptionPolicy: Never: the chosen gang is evicted as one, and nobody else.

    With --kai new pods of KAI's queues that KAI would pre-empt for are held by a scheduling gate instead, for at most
    --budget: the chosen gang of their queue is evicted as one, and KAI gives them its room.

    Examples:

        kopt controller preemption --kubeconfig admin.conf --mode annotate
    """
    import uvloop

    from kopt.controllers.logs import log_to_stderr
    from kopt.controllers.preemption.given import ControllerSettings
    from kopt.controllers.preemption.process import ProcessSettings, serve
    from kopt.core.decision import Mode

    if mode not in tuple(Mode):
        usage_error(f"{mode!r} is not a mode; there are {', '.join(Mode)}", "--mode")
    if mode == Mode.ENFORCE and not (service or url):
        usage_error("enforce holds new Workloads, which needs --service or --url", "--mode")
    settings = ProcessSettings(
        controller=ControllerSettings(
            Mode(mode), float(seconds(budget, "--budget")), max(1.0, float(seconds(cover, "--cover")))
        ),
        hold=_hold(service, url, namespace, host, review_port), namespace=namespace,
        identity=identity or f"{socket.gethostname()}-{os.getpid()}", kubeconfig=kubeconfig, host=host, port=port,
        plain_pods=plain_pods, kai=kai,
    )  # fmt: skip
    log_to_stderr()
    uvloop.run(serve(settings))


def _hold(service: str, url: str, namespace: str, host: str, port: int) -> "HoldSettings | None":
    from urllib.parse import urlsplit

    from kopt.controllers.preemption.holding import HoldSettings
    from kopt.controllers.webhook.registration import Address

    if not (service or url):
        return None
    if url and not url.startswith("https://"):
        usage_error("the API server calls https:// only", "--url")
    names = (urlsplit(url).hostname or "",) if url else (f"{service}.{namespace}.svc",)
    return HoldSettings(Address(namespace, service, url=url), names, host, port)
