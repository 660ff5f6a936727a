"""``kopt reservations propose``: reservations of GPUs that queues of high classes are forecast to lack."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.errors import Refused, unknown_name, usage_error
from kopt.cli.options import Kubeconfig, Output, PrometheusToken, seconds
from kopt.cli.output import Answer, Format, column, printable, show
from kopt.core.scheduling.workload_class import WorkloadClass
from kopt.core.times import stamp
from kopt.core.units import format_gpus, format_span

if TYPE_CHECKING:
    from kopt.cluster.client.resources import Key
    from kopt.controllers.reservations.observed import Observed
    from kopt.controllers.reservations.proposing import Proposal, ProposalSettings
    from kopt.core.scheduling.queue_demand import QueueDemandHistory

_LONGEST_LEAD_S = 86_400


def _gpus(milli: float | None) -> str:
    return "–" if milli is None else format_gpus(round(milli / 100) * 100)


def _time(at_s: float | None) -> str:
    return "–" if at_s is None else f"{stamp(at_s)[:16].replace('T', ' ')}Z"


@dataclass(frozen=True)
class ProposalRow:
    """A reservation, or a queue for which there is none. ``median``, ``upper`` (at the quantile) and ``free``:
    thousandths of a GPU, at the tightest hour. Times are Unix seconds."""

    queue: str = column("queue")
    pool: str = column("pool", drop=3)
    workload_class: str = column("class", show=lambda word: word or "–", drop=2)
    nodes: int | None = column("nodes", show=str)
    gpus_per_node: int | None = column("GPUs each", show=str)
    start_s: float | None = column("start", show=_time)
    until_s: float | None = column("until", show=_time)
    median: float | None = column("median", show=_gpus, drop=1)
    upper: float | None = column("quantile", show=_gpus)
    free: float | None = column("free", show=_gpus)
    code: str = column("code", drop=4)
    reservation: str = column("reservation", wide=True)
    reason: str = column("reason", wide=True)


def propose(
    prometheus: Annotated[
        str, typer.Option("--prometheus", metavar="URL", help="Where `kopt controller queues` is scraped.")
    ],
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="NAME", help="A ClusterQueue of any class; default: all of these classes."),
    ] = None,
    class_: Annotated[
        list[WorkloadClass] | None,
        typer.Option("--class", metavar="CLASS", help="Of most of a queue's GPUs; default: interactive, inference."),
    ] = None,
    for_: Annotated[
        list[str] | None,
        typer.Option("--for", metavar="NAMESPACE/NAME", help="The LocalQueue to reserve for, of a queue with several."),
    ] = None,
    quantile: Annotated[
        float, typer.Option("--quantile", min=0.5, max=0.99, help="Of the demand; higher reserves more, and in vain.")
    ] = 0.9,
    days: Annotated[int, typer.Option("--days", min=1, max=7, help="How far ahead.")] = 2,
    lead: Annotated[
        str, typer.Option("--lead", metavar="SPAN", help="Default: 10m, and more where earlier ones were late.")
    ] = "",
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="How much demand to go by.")] = "8w",
    token_file: PrometheusToken = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Propose reservations for hours in which a queue is forecast to demand more than is free for it. Writes nothing.

    Goes by what queues used and waited for, hour by hour, over two weeks at least (Kueue). What is free is the queue's
    quota and what its cohort is forecast to leave. With -o yaml the reservations can be applied as they are; what is
    not proposed, and why, stands in comments. Run it again each day: later forecasts take the place of
    earlier ones, and are better.

    Examples:

        kopt reservations propose --prometheus http://prometheus:9090

        kopt reservations propose --prometheus http://prometheus:9090 --queue serving --days 2 --quantile 0.95

        kopt reservations propose --prometheus http://prometheus:9090 -o yaml | kubectl apply -f -
    """
    from kopt.cli.queues.advise import read_history
    from kopt.controllers.reservations.proposing import HIGH_CLASSES, ProposalSettings, proposals

    lead_s = float(seconds(lead, "--lead")) if lead else None
    if lead_s is not None and lead_s > _LONGEST_LEAD_S:
        usage_error("a lead is at most a day", "--lead")
    keys, span_s = [_key(each) for each in for_ or []], seconds(since, "--since")
    history = read_history(prometheus, span_s, token_file)
    observed = asyncio.run(_observed(kubeconfig))
    settings = ProposalSettings(
        quantile,
        86_400.0 * days,
        _known_queues(queue or [], observed, history),
        tuple(class_ or HIGH_CLASSES),
        {_target(key, observed): key for key in keys},
        lead_s,
    )
    made = proposals(observed, history, settings)
    if output is Format.YAML:
        typer.echo(yaml_of(made), nl=False)
        return
    show(answer(made, settings, span_s), output)


def answer(made: "Sequence[Proposal]", settings: "ProposalSettings", since_s: float) -> Answer:
    """Reservations, and why there are no others."""
    from kopt.policies.reservations.forecast import METHOD

    rows = [_row(each) for each in made if each.reason.code != "RESERVATION_NOT_ASKED"]
    remarks = [
        f"By {METHOD} from {format_span(since_s)} of demand, used and waited for; "
        f"{format_span(settings.ahead_s)} ahead, at the {settings.quantile:.0%} quantile.",
        *(f"{row.queue}: {row.reason}" for row in rows),
    ]
    if any(each.document for each in made):
        remarks.append("Nothing is written: -o yaml prints manifests for kubectl apply -f -.")
    manifests = [each.document for each in made if each.document is not None]
    header = {"method": METHOD, "since_s": since_s, "quantile": settings.quantile, "manifests": manifests}
    return Answer("proposals", rows, header, remarks=remarks, empty="no queue with a history has quota of GPUs",
                  hide_header=True)  # fmt: skip


def yaml_of(made: "Sequence[Proposal]") -> str:
    """Documents for ``kubectl apply -f -``, with what is not proposed as comments at their head."""
    import yaml

    others = [each for each in made if each.document is None and each.reason.code != "RESERVATION_NOT_ASKED"]
    comments = [f"# {each.reason.code} {printable(each.queue)}: {printable(each.reason.message)}" for each in others]
    documents: list[dict[str, Any]] = [each.document for each in made if each.document is not None]
    if not documents:
        comments.append("# There is nothing to reserve.")
    text = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, explicit_start=True) if documents else ""
    return "".join(f"{line}\n" for line in comments) + text


def _row(each: "Proposal") -> ProposalRow:
    window = each.window
    return ProposalRow(
        each.queue,
        each.pool,
        each.workload_class,
        None if window is None else window.nodes,
        None if window is None else window.gpus_per_node,
        None if window is None else window.start_s,
        None if window is None else window.until_s,
        None if window is None else window.middle,
        None if window is None else window.upper,
        None if window is None else window.free,
        each.reason.code,
        each.name,
        each.reason.message,
    )


def _key(text: str) -> "Key":
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        usage_error(f"{text!r} is no LocalQueue; write it like NAMESPACE/NAME", "--for")
    return namespace, name


def _known_queues(names: Sequence[str], observed: "Observed", history: "QueueDemandHistory") -> tuple[str, ...]:
    known = sorted({name for name, _ in history.used if name in observed.queues})
    for name in names:
        if name not in known:
            there = f"demand is known of {', '.join(known) or 'none that the cluster has'}"
            unknown_name("queue", name, known, "--queue", there)
    return tuple(names)


def _target(key: "Key", observed: "Observed") -> str:
    """The ClusterQueue of a LocalQueue."""
    target = observed.local_queues.get(key, "")
    if not target:
        names = ["/".join(each) for each in sorted(observed.local_queues)]
        unknown_name("LocalQueue", "/".join(key), names, "--for", f"there are {', '.join(names) or 'none'}")
    return target


async def _observed(kubeconfig: Path | None) -> "Observed":
    from kopt.cli.open_cluster import open_cluster
    from kopt.cluster.client.api import NotFound
    from kopt.controllers.reservations.reading import read_cluster

    async with open_cluster(kubeconfig) as kube:
        try:
            return await read_cluster(kube, time.time())
        except NotFound as error:
            raise Refused("the cluster has no Kueue or no KaiwoReservations: apply deploy/chart/crds") from error
