"""``kopt cost``: what GPUs cost, by whom; prices, single lines, and an export."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.cost.asking import ServerOption, TokenOption, costs_from_endpoint, refuse_beside_server
from kopt.cli.cost.reading import PriceOption, Prices, Question, SinceOption, Source, metered, read_book
from kopt.cli.cost.run import run_command
from kopt.cli.cost.spot import spot
from kopt.cli.errors import Refused
from kopt.cli.options import Output, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import print_status
from kopt.core.cost.metering import GPU_HOUR
from kopt.policies.cost.attribution import UNATTRIBUTED, By, CostRow, Grouping, Part, Unused
from kopt.policies.cost.budgets import stamp

if TYPE_CHECKING:
    from kopt.cli.sizing.measured import Measurements
    from kopt.policies.cost.report import CostReport

app = typer.Typer(invoke_without_command=True, no_args_is_help=False)
ByOption = Annotated[By, typer.Option("--by", help="Whom costs are attributed to.", show_choices=True)]
LabelOption = Annotated[
    str, typer.Option("--label", metavar="KEY", help="By a label of pods, else of their namespaces, that is recorded.")
]
LimitOption = Annotated[
    int, typer.Option("--limit", min=0, help="Rows at most; the others are one row, their sum. 0 lists all.")
]


def _money(micro: int | None) -> str:
    return "" if micro is None else f"{micro / 1_000_000:,.2f}"


@dataclass(frozen=True)
class Row:
    """``micro`` is the amount in millionths of the currency; null where no price is known."""

    name: str = column("who")
    part: str = column("part", drop=1)
    pods: int = column("pods", show=lambda pods: str(pods) if pods else "", drop=2)
    gpu_hours: float = column("GPU-hours", show=lambda hours: f"{hours:,.2f}")
    micro: int | None = column("amount", show=_money)
    currency: str = column("currency")
    share: float = column("share", show=lambda share: f"{share:.1%}", drop=3)
    steps: int = column("steps", show=lambda steps: f"{steps:,}" if steps > 0 else "", drop=2)
    micro_per_step: int | None = column("a step", show=lambda micro: f"{micro / 1e6:.6f}".rstrip("0"), drop=3)
    unused_gpu_hours: float | None = column("of it unused", show=lambda hours: f"{hours:,.2f}", drop=4)
    unused_micro: int | None = column("amount of that", show=_money, drop=5)


@app.callback()
def cost(
    context: typer.Context,
    by: ByOption = By.NAMESPACE,
    label: LabelOption = "",
    since: SinceOption = "30d",
    prices: Prices = None,
    price: PriceOption = None,
    prometheus: Annotated[
        str, typer.Option("--prometheus", metavar="URL", help="Also what pods held and did not use; see kopt idle.")
    ] = "",
    token_file: TokenOption = None,
    limit: LimitOption = 1000,
    server: ServerOption = "",
    output: Output = Format.TABLE,
) -> None:
    """What GPUs cost and who used them, from what `kopt controller meter` has recorded.

    Rows sum to GPU-hours of nodes × price: what nobody is charged for is idle, by its reason, and what has no
    namespace, queue, team or label keeps a row. The price is the one that was valid when it was used. Of machines
    without a price only GPU-hours are shown: name one with --prices or --price. Reads the database of
    KOPT_DATABASE_URL, else cost.db below KOPT_STATE_DIR or KOPT_HOME; in a cluster, run it in the meter's pod.

    Examples:

        kopt cost --by team --since 30d

        kopt cost --label project --price 2.49 -o csv

        kopt cost --by team --since 7d --prometheus http://prometheus:9090

        kubectl -n kopt-system exec deploy/kopt-meter -- kopt cost --by queue

        kopt cost --server https://gpus.example --token-file token --by workload
    """
    if context.invoked_subcommand is not None:
        return
    if server:
        refuse_beside_server(prices=prices, price=price, prometheus=prometheus or None)
        show(answer_of(costs_from_endpoint(server, token_file, by, label, since, limit)), output)
        return
    with metered(Question(since, prices, price)) as source:
        measurements = None
        if prometheus:
            from kopt.cli.sizing import measured

            measurements = measured.read(measured.Question(prometheus, seconds(since, "--since"), token_file), "")
        show(answer(source, by, label, measurements, limit), output)


def answer(
    source: Source, by: By, label: str = "", measurements: "Measurements | None" = None, limit: int = 0, offset: int = 0
) -> Answer:
    """Sums are of all rows, and of nodes beside them. With measurements also what pods held and did not use."""
    from kopt.controllers.meter.reports import CostReports
    from kopt.policies.cost.report import CostQuestion

    window = source.window
    question = CostQuestion(window.start_ms, window.end_ms, by, label, offset, limit)
    activity = None if measurements is None else measurements.activity
    return answer_of(CostReports(source.store, source.book).report(question, activity))


def answer_of(report: "CostReport") -> Answer:
    """Rows, and the sum of those that are not listed; an unattributed row even where it is empty."""
    used = report.used
    rows = [*report.rows, *report.rest]
    table = [_row(row, used, report.unused_of(row)) for row in rows]
    if used and not any(row.name == UNATTRIBUTED for row in rows):
        table.append(Row(UNATTRIBUTED, Part.PODS.value, 0, 0.0, 0, "", 0.0, 0, None, None, None))
    remarks = [*_remarks(report), *_unused_remarks(report)]
    return Answer("costs", table, report.to_dict(), remarks=remarks, hide_header=True)


def _grouping(source: Source, by: By, label: str) -> Grouping:
    return Grouping(source.store.attributes(), source.store.nodes(), by, label)


def _row(row: CostRow, used: int, unused: Unused | None) -> Row:
    micro = None if row.unpriced else row.micro
    share = row.used / used if used else 0.0
    hours = None if unused is None else unused.used / GPU_HOUR
    amount = None if unused is None or row.unpriced else unused.micro
    return Row(
        row.name,
        row.part.value,
        row.pods,
        row.used / GPU_HOUR,
        micro,
        row.currency,
        share,
        row.steps,
        row.micro_per_step,
        hours,
        amount,
    )


def _unused_remarks(report: "CostReport") -> list[str]:
    unused = report.unused_in_all
    if unused is None:
        return []
    remark = f"Allocated and not used: {unused.used / GPU_HOUR:,.2f} GPU-hours, in the rows of those who held them."
    more = f" Not measured: {unused.unmeasured / GPU_HOUR:,.2f} GPU-hours of pods." if unused.unmeasured else ""
    return [remark + more]


def _remarks(report: "CostReport") -> list[str]:
    nodes, hours = report.nodes, report.used / GPU_HOUR
    span = f"{stamp(report.start_ms)} to {stamp(report.end_ms)}"
    if nodes is None:
        remarks = [f"{span}: {hours:,.2f} GPU-hours of pods in namespaces that you may read."]
    else:
        of_nodes = nodes.used / GPU_HOUR
        remarks = [f"{span}: {hours:,.2f} GPU-hours of pods and idleness, {of_nodes:,.2f} of nodes."]
    for currency, micro in report.micro.items():
        total = f"Total {_money(micro)} {currency}"
        if nodes is not None:
            idle, of_node = report.idle_micro.get(currency, 0), nodes.micro.get(currency, 0)
            total += f", {_money(idle)} of it idle; node-hours × price is {_money(of_node)} {currency}"
        projected = report.projected_micro.get(currency)
        remarks.append(f"{total}{f'; as in this time, {_money(projected)} in 30 days' if projected else ''}.")
    for name, used in report.unpriced.items():
        remarks.append(f"No price of {name}: {used / GPU_HOUR:,.2f} GPU-hours; name one with --prices or --price.")
    return [*remarks, report.rule.sentence]


@dataclass(frozen=True)
class PriceRow:
    model: str = column("model")
    provider: str = column("provider")
    region: str = column("region", drop=1)
    capacity: str = column("capacity")
    per_gpu_hour: float = column("GPU-hour", show=lambda price: f"{price:.4g}")
    currency: str = column("currency")
    valid_from: str = column("from")
    source: str = column("source", drop=2)


@app.command("prices")
def list_prices(
    prices: Prices = None,
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Only of this GPU.")] = "",
    output: Output = Format.TABLE,
) -> None:
    """List the prices that are used, with the day from which each is valid, and where it was read.

    A book of one's own is TOML, and its entries replace the shipped ones of their model and capacity:

        [[price]]
        model = "H100-SXM5-80GB"
        per_gpu_hour = 2.10
        from = 2026-01-01
        source = "contract 4711"

    Further fields: provider, region (of what the node's labels say), capacity (on-demand, spot, reserved), currency.

    Examples:

        kopt cost prices --model h100

        kopt cost prices --prices ours.toml -o json
    """
    from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu

    try:
        name = find_gpu(model).name if model else ""
    except UnknownGpuError as error:
        raise Refused(str(error)) from error
    rows = [
        PriceRow(
            price.model,
            price.provider,
            price.region,
            price.capacity,
            price.micro_per_gpu_hour / 1_000_000,
            price.currency,
            stamp(price.from_ms)[:10] if price.from_ms else "",
            price.source,
        )
        for price in read_book(prices).prices
        if name in ("", price.model)
    ]
    show(Answer("prices", rows, empty="no price of this GPU; write a book of your own"), output)


@dataclass(frozen=True)
class EventRow:
    """A part of a row: one pod, or idleness, with one share of one node at one price."""

    subject: str = column("who")
    node: str = column("node")
    start: str = column("from")
    end: str = column("until")
    gpus: float = column("GPUs", show=lambda gpus: f"{gpus:g}")
    gpu_hours: float = column("GPU-hours", show=lambda hours: f"{hours:,.3f}")
    per_gpu_hour: float | None = column("price", show=lambda price: "" if price is None else f"{price:g}")
    micro: int | None = column("amount", show=_money)
    currency: str = column("currency", drop=1)
    price_source: str = column("price's source", drop=2)


@app.command("explain")
def explain(
    row: Annotated[str, typer.Argument(metavar="ROW", help="As `kopt cost` names it, such as research.")],
    by: ByOption = By.NAMESPACE,
    label: LabelOption = "",
    since: SinceOption = "30d",
    prices: Prices = None,
    price: PriceOption = None,
    server: ServerOption = "",
    token_file: TokenOption = None,
    output: Output = Format.TABLE,
) -> None:
    """Show one row of `kopt cost` down to its events: which pod had which share of which node, when, at which price.

    Examples:

        kopt cost explain research --since 7d

        kopt cost explain "(idle: stranded)"

        kopt cost explain research --server https://gpus.example --token-file token
    """
    if server:
        refuse_beside_server(prices=prices, price=price)
        show(events_of_server(row, server, token_file, by, label, since), output)
        return
    with metered(Question(since, prices, price)) as source:
        show(events(source, row, by, label), output)


def events(source: Source, row: str, by: By, label: str = "") -> Answer:
    """Raises Refused for a row that there is not."""
    from kopt.cli.cost.events import event_rows
    from kopt.controllers.meter.reports import CostReports
    from kopt.policies.cost.report import CostQuestion

    reports = CostReports(source.store, source.book)
    question = CostQuestion(source.window.start_ms, source.window.end_ms, by, label, limit=0)
    listed = event_rows(reports.events(question, row))
    if not listed:
        names = sorted({item.name for item in reports.report(question).rows})
        raise Refused(f"no row {row!r}; there are {', '.join(names[:8]) or 'none'}")
    hours = sum(event.gpu_hours for event in listed)
    return Answer("events", listed, remarks=[f"{hours:,.3f} GPU-hours.", source.store.rule().sentence])


def events_of_server(row: str, server: str, token_file: Path | None, by: By, label: str, since: str) -> Answer:
    """Raises Refused."""
    from kopt.cli.cost.asking import events_from_endpoint
    from kopt.cli.cost.events import event_rows

    events, total = events_from_endpoint(row, server, token_file, by, label, since)
    hours = sum(event.used for event in events) / GPU_HOUR
    remark = f"{hours:,.3f} GPU-hours." if len(events) == total else f"The first {len(events):,} of {total:,} events."
    return Answer("events", event_rows(events), remarks=[remark])


@app.command("export")
def export(
    focus: Annotated[Path, typer.Option("--focus", metavar="FILE", help="Where to write CSV with FOCUS columns.")],
    since: SinceOption = "30d",
    prices: Prices = None,
    price: PriceOption = None,
) -> None:
    """Write a line for each pod, idleness and day, with the columns of the FinOps Foundation's FOCUS 1.0.

    Labels are in Tags; idleness has no SubAccountId. Lines without a price have an empty cost. Days are UTC's.

    Examples:

        kopt cost export --focus costs.csv --since 30d
    """
    from kopt.cli.cost.focus import write

    with metered(Question(since, prices, price)) as source:
        try:
            number = write(source, focus)
        except OSError as error:
            raise Refused(f"{focus} cannot be written: {error}") from error
    print_status(f"{number} lines in {focus}")


app.command("run")(run_command)
app.command("spot")(spot)
