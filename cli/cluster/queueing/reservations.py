"""``kopt reservations``: how reservations stand and went, and what one would do before it is made."""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.cluster.queueing.propose import propose
from kopt.cli.errors import Refused, usage_error
from kopt.cli.open_cluster import open_cluster
from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Answer, Format, column, show
from kopt.core.times import stamp
from kopt.core.units import WHOLE_GPU, counted, format_gpus, format_span

if TYPE_CHECKING:
    from kopt.controllers.reservations.snapshot import Accepted, Pool
    from kopt.controllers.reservations.views import Reserved

app = typer.Typer(no_args_is_help=True, help="GPUs that are kept free for a queue at a time to come.")
app.command("propose")(propose)


_AXIS_CHARS = 48


def _time(at_s: float | None) -> str:
    return "" if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%MZ")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


@dataclass(frozen=True)
class ReservationRow:
    """A reservation; the last columns are of its past occurrences. Times are Unix seconds."""

    reservation: str = column("reservation")
    queue: str = column("for queue", drop=2)
    gpus: int = column("GPUs")
    start_s: float | None = column("start", show=_time)
    until_s: float | None = column("until", show=_time, drop=3)
    phase: str = column("phase")
    held_gpus: int = column("held")
    used_gpus: int = column("used")
    kept: int | None = column("kept")
    occurrences: int = column("of")
    latest_late_s: float | None = column("latest", show=lambda span_s: f"{span_s:.0f} s late" if span_s else "in time")
    used_share: float | None = column("used share", show=_percent, drop=1)
    backfilled_share: float | None = column("backfilled", show=_percent, drop=1)
    by: str = column("by", drop=1)
    message: str = column("message", wide=True)


@app.command("list")
def list_reservations(
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Only this namespace; default: all.")] = "",
    within: Annotated[float, typer.Option(help="Later than this many seconds is not kept.", min=0)] = 60.0,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """List reservations: where each stands, how often it was there in time, and what it was used for.

    Examples:

        kopt reservations list

        kopt reservations list -n vision -o json
    """
    reserved = asyncio.run(_reservations(kubeconfig, namespace))
    show(answer(reserved, within), output)


def answer(reserved: "list[Reserved]", within_s: float) -> Answer:
    """Each by itself; those that are refused say why."""
    rows = [_row(each, within_s) for each in sorted(reserved, key=lambda each: each.key)]
    remarks = [f"{row.reservation} is refused: {row.message}" for row in rows if row.phase == "Refused"]
    remarks += _forecasts(rows)
    return Answer("reservations", rows, remarks=remarks, empty="there are no reservations")


def _row(each: "Reserved", within_s: float) -> ReservationRow:
    from kopt.cluster.objects.custom.reservation import UNSEEN, results_of
    from kopt.cluster.objects.fields import count, items, text
    from kopt.core.times import seconds

    status, results = each.document.get("status") or {}, results_of(each.document)
    start, until = (text(status, name) for name in ("start", "until"))
    messages = {text(row, "type"): text(row, "message") for _, row in items(status, "conditions")}
    spec = each.spec
    shares = [result.used_share for result in results]
    backfilled = [result.backfilled_share for result in results]
    return ReservationRow(
        each.name,
        "" if spec is None else spec.queue,
        0 if spec is None else spec.gpus,
        seconds(start) if start else None if spec is None else spec.start_s,
        seconds(until) if until else None if spec is None else spec.until_s,
        text(status, "phase") or "Unseen",
        count(status, "heldGpus", default=0),
        count(status, "usedGpus", default=0),
        sum(result.late_s is not None and result.late_s <= within_s for result in results) if results else None,
        len(results),
        results[0].late_s if results else None,
        sum(shares) / len(shares) if shares else None,
        sum(backfilled) / len(backfilled) if backfilled else None,
        _made_by(each),
        messages.get("Accepted", each.error or UNSEEN),
    )


def _made_by(each: "Reserved") -> str:
    from kopt.cluster.objects.custom.reservation_forecast import forecast_mark

    if forecast_mark(each.document) is not None:
        return "forecast"
    return "calendar" if each.spec is not None and each.spec.recurrence else "hand"


def _forecasts(rows: "list[ReservationRow]") -> list[str]:
    """How those by forecast went, over all of their past occurrences."""
    past = [row for row in rows if row.by == "forecast" and row.occurrences]
    ended = sum(row.occurrences for row in past)
    if not ended:
        return []
    kept = sum(row.kept or 0 for row in past)
    used = sum((row.used_share or 0.0) * row.occurrences for row in past) / ended
    return [f"By forecast: {ended} ended, {kept} of them there in time, {used:.0%} of their GPU time used."]


@dataclass(frozen=True)
class AxisRow:
    """A reservation on the axis of the answer's ``start_s`` to ``end_s``."""

    reservation: str = column("reservation")
    queue: str = column("for queue", drop=2)
    gpus: int = column("GPUs")
    phase: str = column("state")
    start_s: float | None = column("start", show=_time, drop=3)
    until_s: float | None = column("until", show=_time, drop=3)
    backfilled_share: float | None = column("used by others", show=_percent, drop=1)
    axis: str = column("axis")


@app.command("axis")
def axis(
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Only this namespace; default: all.")] = "",
    days: Annotated[int, typer.Option("--days", help="How far ahead.", min=1, max=60)] = 7,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Show reservations on a time axis, from a day ago on. # is reserved, ~ held and used by others until then, | now.

    Examples:

        kopt reservations axis

        kopt reservations axis --days 14 -n vision
    """
    reserved = asyncio.run(_reservations(kubeconfig, namespace))
    show(axis_answer(reserved, time.time(), days), output)


def axis_answer(reserved: "list[Reserved]", now_s: float, days: int) -> Answer:
    """Each reservation's past occurrences and the present or next one."""
    from kopt.cluster.objects.custom.reservation import account_of, standing_of

    start_s, end_s = now_s - 86_400, now_s + days * 86_400
    rows = []
    for each in sorted(reserved, key=lambda each: each.key):
        standing, account = standing_of(each.document), account_of(each.document)
        spans = [(result.occurrence.start_s, result.occurrence.until_s, "#") for result in standing.results]
        if account is not None:
            spans.append((account.opened_s, min(account.since_s, account.occurrence.start_s), "~"))
        if standing.start_s is not None and standing.until_s is not None and not standing.is_refused:
            spans.append((standing.start_s, standing.until_s, "#"))
        line = axis_line(spans, now_s, start_s, end_s)
        rows.append(
            AxisRow(
                standing.name,
                standing.queue,
                standing.gpus,
                standing.phase,
                standing.start_s,
                standing.until_s,
                standing.backfilled_share,
                line,
            )
        )
    header = {"start_s": start_s, "end_s": end_s}
    remarks = [f"The axis is from {_time(start_s)} to {_time(end_s)}."] if rows else []
    return Answer("reservations", rows, header=header, remarks=remarks, empty="there are no reservations")


def axis_line(spans: "list[tuple[float, float, str]]", now_s: float, start_s: float, end_s: float) -> str:
    """``spans`` of Unix seconds with their letter, in ``_AXIS_CHARS`` characters; the shortest still has one."""
    cells = ["."] * _AXIS_CHARS

    def cell(at_s: float) -> int:
        return int((at_s - start_s) / (end_s - start_s) * _AXIS_CHARS)

    for begin_s, until_s, letter in spans:
        if until_s <= start_s or begin_s >= end_s or until_s <= begin_s:
            continue
        first = max(0, cell(begin_s))
        last = max(first + 1, min(_AXIS_CHARS, cell(until_s)))
        cells[first:last] = letter * (last - first)
    cells[min(_AXIS_CHARS - 1, cell(now_s))] = "|"
    return "".join(cells)


@dataclass(frozen=True)
class EffectRow:
    """What a reservation means for one job."""

    job: str = column("job")
    gpus: float = column("GPUs", show=lambda gpus: f"{gpus:g}")
    state: str = column("state")
    ends_within_s: float | None = column("ends within", show=lambda span_s: format_span(span_s))
    effect: str = column("effect")
    why: str = column("why", drop=1)


@app.command("plan")
def plan(
    file: Annotated[
        Path, typer.Option("-f", "--file", metavar="FILE", help="A KaiwoReservation; - is standard input.")
    ],
    predictions: Annotated[
        str, typer.Option("--predictions", metavar="URL", envvar="KOPT_URL", help="Endpoint that knows run times.")
    ] = "",
    cluster: Annotated[str, typer.Option("--cluster", help="Name of this cluster at the endpoint.")] = "",
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what a reservation would do before it is made: whether it can be kept, and what would wait or stop for it.

    Nothing is written. A job ends in time if it does with a probability of 95 %, by the endpoint or Kueue's own limit.

    Examples:

        kopt reservations plan -f reservation.yaml

        kopt reservations plan -f reservation.yaml --predictions http://127.0.0.1:8700 -o json
    """
    reserved = _manifest(file)
    accepted, pool, refusal = asyncio.run(_planned(kubeconfig, reserved, predictions, cluster))
    if accepted is None or pool is None:
        raise Refused(f"{reserved.name} cannot be kept: {refusal}")
    show(effects(accepted, pool), output)


def effects(accepted: "Accepted", pool: "Pool") -> Answer:
    """What becomes of the jobs of its pool."""
    from kopt.policies.reservations import plan_pool

    now_s, start_s, planned = pool.snapshot.now_s, accepted.occurrence.start_s, plan_pool(pool.snapshot)
    rows, missing = [], 0
    for job in pool.snapshot.running:
        ends = job.remaining_s is not None and now_s + job.remaining_s <= start_s
        effect = "ends in time" if ends else "of its owner" if job.owner == accepted.owner else "may still run"
        why = ""
        if effect == "may still run":
            missing += job.gpus
            why = "It can be stopped in the lead." if job.is_killable else _bar(pool, job.name)
        rows.append(EffectRow(job.name, job.gpus / WHOLE_GPU, "runs", job.remaining_s, effect, why))
    for pending in pool.snapshot.pending:
        refused = planned.refused.get(pending.name)
        effect, why = ("may start", "") if refused is None else ("waits", refused.message)
        rows.append(EffectRow(pending.name, pending.gpus / WHOLE_GPU, "waits", pending.run_s, effect, why))
    spare = pool.snapshot.gpus - accepted.spec.gpus * WHOLE_GPU
    remarks = [
        f"{counted(accepted.spec.gpus, 'GPU')} of {pool.name} from {_time(start_s)} until "
        f"{_time(accepted.occurrence.until_s)} for {accepted.owner}; the pool has {format_gpus(pool.snapshot.gpus)}, "
        f"{format_gpus(pool.snapshot.free)} of them idle now."
    ]
    if missing > spare:
        remarks.append(
            f"What may still run then has {counted(format_gpus(missing), 'GPU')}, and beside the reservation there is "
            f"room for {format_gpus(spare)}: {format_gpus(missing - spare)} would be reclaimed in the lead of "
            f"{format_span(accepted.spec.lead_s)}."
        )
    return Answer("jobs", rows, remarks=remarks, empty="no job uses its pool, or waits for it")


def _bar(pool: "Pool", name: str) -> str:
    candidate = pool.candidates.get(name)
    barred = None if candidate is None else candidate.barred
    return "Nothing is known of its checkpoints." if barred is None else barred.message


def _manifest(file: Path) -> "Reserved":
    from kopt.cli.queues.manifests import documents
    from kopt.cluster.objects.custom.reservation import KIND
    from kopt.controllers.reservations.views import read_reserved

    manifests = [item for item in documents(file) if isinstance(item, dict) and item.get("kind") == KIND]
    metadata = manifests[0].get("metadata") if len(manifests) == 1 else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        usage_error(f"{file} has to be one {KIND} with a name", "--file")
    metadata.setdefault("namespace", "default")
    # The newest: reservations that are there already have precedence.
    metadata.setdefault("creationTimestamp", stamp(time.time()))
    reserved = read_reserved(manifests[0])
    if reserved.spec is None:
        usage_error(f"{file}: {reserved.error}", "--file")
    return reserved


async def _reservations(kubeconfig: Path | None, namespace: str) -> "list[Reserved]":
    from kopt.cluster.client.api import NotFound
    from kopt.controllers.reservations.reading import read_reservations_of

    async with open_cluster(kubeconfig) as kube:
        try:
            return await read_reservations_of(kube, namespace)
        except NotFound as error:
            raise Refused("the cluster has no KaiwoReservations: apply deploy/chart/crds") from error


async def _planned(
    kubeconfig: Path | None, reserved: "Reserved", predictions: str, cluster: str
) -> "tuple[Accepted | None, Pool | None, str]":
    """The reservation with its pool, or why it cannot be kept."""
    from kopt.cluster.client.api import ApiError, NotFound, connect
    from kopt.controllers.reservations.main import endpoint
    from kopt.controllers.reservations.reading import read_cluster
    from kopt.controllers.reservations.run_times import RunTimes
    from kopt.controllers.reservations.snapshot import pools_of, read_reservations

    try:
        async with connect(kubeconfig) as kube, endpoint(predictions, cluster) as ask:
            observed = await RunTimes(ask).added(await read_cluster(kube, time.time(), [reserved]))
    except NotFound as error:
        raise Refused("the cluster has no Kueue or no KaiwoReservations: apply deploy/chart/crds") from error
    except ApiError as error:
        raise Refused(f"the cluster cannot be read: {error}") from error
    reading = read_reservations(observed)
    accepted = next((each for each in reading.accepted if each.reserved.name == reserved.name), None)
    if accepted is None:
        return None, None, reading.refused.get(reserved.name, ("", "its time is over"))[1]
    pools = pools_of(observed, reading.accepted, float("inf"))
    return accepted, next(pool for pool in pools if reserved.name in pool.reservations), ""
