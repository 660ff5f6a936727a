"""Reservations by forecast, as `kopt reservations propose` writes them, from the cluster and its queues' demand. Pure.

A proposal has the name of its queue, pool and hour of the week. The one of the next week so takes its place, and its
history says how those before it went.
"""

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from kopt.cluster.client.resources import Key, Object
from kopt.cluster.objects.custom.reservation import results_of
from kopt.cluster.objects.custom.reservation_forecast import ForecastMark, forecast_mark, proposed_document
from kopt.cluster.workloads.kueue.reading import requests_of
from kopt.cluster.workloads.requests.pods import is_gpu
from kopt.controllers.reservations.observed import Observed, holding, nodes_of
from kopt.controllers.reservations.snapshot import read_reservations
from kopt.controllers.reservations.views import Reserved, read_reserved
from kopt.core.reason import Reason
from kopt.core.scheduling.queue_demand import QueueDemandHistory, QueuePool
from kopt.core.scheduling.quota import FlavorResource
from kopt.core.scheduling.reservation import Reservation
from kopt.core.scheduling.workload_class import WorkloadClass
from kopt.core.units import WHOLE_GPU
from kopt.core.workload.gpu_share import CHARGE_RESOURCE
from kopt.policies.reservations import RecurrenceError, occurrences
from kopt.policies.reservations.forecast import (
    HOUR_S,
    METHOD,
    WEEK_HOURS,
    HourlyForecast,
    NoForecast,
    forecast,
    kept_share,
)
from kopt.policies.reservations.proposals import Outlook, Window, borrowable, propose

HIGH_CLASSES = (WorkloadClass.INTERACTIVE, WorkloadClass.INFERENCE)
USUAL_LEAD_S, _MOST_LEAD_S = 600.0, 3600.0
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_LONGEST_STEM = 40


@dataclass(frozen=True)
class ProposalSettings:
    """``queues`` are ClusterQueues; empty: those of which most GPUs are of ``classes``. ``owners``: the LocalQueue that
    a ClusterQueue's reservations are for, where it has several. ``lead_s`` None: by how late earlier ones were.
    ``ahead_s``: so far ahead, at most a week; what is further away is forecast better tomorrow."""

    quantile: float = 0.9
    ahead_s: float = 2 * 86_400.0
    queues: tuple[str, ...] = ()
    classes: tuple[WorkloadClass, ...] = HIGH_CLASSES
    owners: Mapping[str, Key] = field(default_factory=dict)
    lead_s: float | None = None


@dataclass(frozen=True)
class Proposal:
    """A queue in a pool: a reservation, or why there is none (``document`` is None)."""

    queue: str
    pool: str
    reason: Reason
    workload_class: str = ""
    window: Window | None = None
    document: Object | None = None
    forecast: HourlyForecast | None = None

    @property
    def name(self) -> str:
        if self.document is None:
            return ""
        metadata = self.document["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}"


def proposals(observed: Observed, history: QueueDemandHistory, settings: ProposalSettings) -> list[Proposal]:
    """For each queue that has a history, by name; those that the controller would refuse say so."""
    proposing, classes = _Proposing(observed, history, settings), _classes(observed)
    keys = [key for key in sorted(history.used) if key[0] in observed.queues]
    made = [each for queue, pool in keys for each in proposing.of(queue, pool, classes.get(queue))]
    return [*_checked(observed, made), *_outdated(observed, made)]


_OF_SHARES = Reason(
    "RESERVATION_OF_SHARES",
    f"It has quota of {CHARGE_RESOURCE} there, and its demand is known of whole GPUs and of shares together.",
)


class _Proposing:
    """Forecasts are kept, as each queue's is needed for all that may borrow from it."""

    def __init__(self, observed: Observed, history: QueueDemandHistory, settings: ProposalSettings) -> None:
        self._observed, self._history, self._settings = observed, history, settings
        self._forecasts: dict[QueuePool, HourlyForecast | Reason] = {}

    def of(self, queue: str, pool: str, workload_class: WorkloadClass | None) -> list[Proposal]:
        """Of one queue in one pool; nothing where it has no quota of GPUs there."""
        word = "" if workload_class is None else str(workload_class)
        covered = [name for flavor, name in self._observed.queues[queue].quotas if flavor == pool]
        if CHARGE_RESOURCE in covered:
            return [Proposal(queue, pool, _OF_SHARES, word)]
        resource = next(filter(is_gpu, covered), "")
        if not resource:
            return []
        owner = _passed_over(queue, workload_class, self._settings) or _owner(self._observed, queue, self._settings)
        if isinstance(owner, Reason):
            return [Proposal(queue, pool, owner, word)]
        predicted = self._forecast(queue, pool)
        if isinstance(predicted, Reason):
            return [Proposal(queue, pool, predicted, word)]
        outlook = self._outlook(owner, queue, (pool, resource), predicted)
        lead_s = _lead_s(self._observed, pool) if self._settings.lead_s is None else self._settings.lead_s
        windows, summary = propose(outlook, self._observed.now_s + lead_s, outlook.start_s + self._settings.ahead_s)
        if not windows:
            return [Proposal(queue, pool, summary, word, forecast=predicted)]
        kept = kept_share(self._history.demand((queue, pool)), self._settings.quantile)
        result, taken = [], set[str]()
        for window in windows:
            name = _name(self._observed, owner, outlook, window, taken)
            taken.add(name)
            document = self._document(owner, name, outlook, window, lead_s, kept)
            result.append(Proposal(queue, pool, window.reason, word, window, document, predicted))
        return result

    def _forecast(self, queue: str, pool: str) -> HourlyForecast | Reason:
        if (queue, pool) not in self._forecasts:
            hours = self._history.demand((queue, pool))
            try:
                self._forecasts[queue, pool] = forecast(hours, self._settings.quantile, WEEK_HOURS)
            except NoForecast as error:
                self._forecasts[queue, pool] = error.reason
        return self._forecasts[queue, pool]

    def _outlook(self, owner: Key, queue: str, of: FlavorResource, predicted: HourlyForecast) -> Outlook:
        observed, start_s, hours = self._observed, self._history.end_s, len(predicted.upper)
        quota, cohort = observed.queues[queue].quotas[of], observed.queues[queue].cohort
        limit = quota.nominal if not cohort else None
        if cohort and quota.borrowing_limit is not None:
            limit = quota.nominal + quota.borrowing_limit
        others = [
            (other.quotas[of].nominal, other.quotas[of].lending_limit, self._upper(name, of[0]))
            for name, other in observed.queues.items()
            if cohort and name != queue and other.cohort == cohort and of in other.quotas
        ]
        lent = borrowable(others, quota.borrowing_limit, hours)
        gpus_per_node = _gpus_per_node(observed, queue, of, max(predicted.upper))
        return Outlook(
            queue,
            of[0],
            start_s,
            predicted,
            [quota.nominal + amount for amount in lent],
            _reserved(observed, owner, of[0], start_s, hours),
            gpus_per_node,
            sum(node.amounts.get(of[1], 0) // (gpus_per_node * WHOLE_GPU) for node in nodes_of(observed, of[0])),
            limit,
        )

    def _upper(self, queue: str, pool: str) -> Sequence[float] | None:
        predicted = self._forecast(queue, pool)
        return None if isinstance(predicted, Reason) else predicted.upper

    def _document(
        self, owner: Key, name: str, outlook: Outlook, window: Window, lead_s: float, kept: float | None
    ) -> Object:
        predicted = outlook.forecast
        mark = ForecastMark(
            METHOD,
            predicted.quantile,
            self._observed.now_s,
            predicted.by,
            predicted.days,
            window.middle,
            window.upper,
            window.free,
            kept,
        )
        reservation = Reservation(
            f"{owner[0]}/{name}",
            owner[1],
            window.nodes,
            window.gpus_per_node,
            window.start_s,
            window.until_s,
            outlook.pool,
            lead_s=lead_s,
        )
        return proposed_document(reservation, mark)


def _classes(observed: Observed) -> dict[str, WorkloadClass]:
    """By ClusterQueue the class of most of the GPUs that its workloads have or wait for."""
    gpus: dict[str, Counter[WorkloadClass]] = {}
    holds = holding(observed)
    for each in observed.workloads:
        workload = each.workload
        if workload.uid not in holds:
            queue = _queue_of(observed, workload.cluster_queue, (each.key[0], workload.queue))
            amount = sum(amount for name, amount in workload.requests.items() if is_gpu(name))
            gpus.setdefault(queue, Counter())[workload.classified.workload_class] += amount
    return {queue: counts.most_common(1)[0][0] for queue, counts in gpus.items()}


def _queue_of(observed: Observed, admitted_to: str, local: Key) -> str:
    return admitted_to or observed.local_queues.get(local, "")


def _passed_over(queue: str, workload_class: WorkloadClass | None, settings: ProposalSettings) -> Reason | None:
    """Why a queue is none of those that are asked about; None for one that is."""
    if settings.queues:
        unnamed = Reason("RESERVATION_NOT_ASKED", "Other queues were named.")
        return None if queue in settings.queues else unnamed
    wanted = ", ".join(settings.classes)
    if workload_class is None:
        text = f"Nothing of it runs or waits now, so its class is not known; name it with --queue {queue}."
        return Reason("RESERVATION_CLASS_UNKNOWN", text)
    if workload_class not in settings.classes:
        text = f"Most of its GPUs are {workload_class}, and proposals are for {wanted}; name it with --queue {queue}."
        return Reason("RESERVATION_CLASS_OTHER", text)
    return None


def _owner(observed: Observed, queue: str, settings: ProposalSettings) -> Key | Reason:
    """The LocalQueue whose jobs a reservation is for."""
    own = sorted(key for key, target in observed.local_queues.items() if target == queue)
    stated = settings.owners.get(queue)
    if stated in own:
        return stated
    if len(own) == 1 and stated is None:
        return own[0]
    names = ", ".join("/".join(key) for key in own) or "none"
    if stated is not None:
        text = f"{'/'.join(stated)} is no LocalQueue of it; it has {names}."
    elif own:
        text = f"It has several LocalQueues, and a reservation is for one; choose with --for: {names}."
    else:
        text = "It has no LocalQueue, so that no job can use a reservation."
    return Reason("RESERVATION_WHOSE", text)


def _gpus_per_node(observed: Observed, queue: str, of: FlavorResource, most: float) -> int:
    """Of the largest pod of its jobs; without any, whole nodes, or what is needed of one."""
    holds, sizes = holding(observed), list[int]()
    for each in observed.workloads:
        local = (each.key[0], each.workload.queue)
        if each.workload.uid not in holds and _queue_of(observed, each.workload.cluster_queue, local) == queue:
            pods = [requests_of(pod_set.spec).get(of[1], 0) for pod_set in each.workload.pod_sets]
            sizes += [math.ceil(amount / WHOLE_GPU) for amount in pods if amount]
    nodes = [node.amounts.get(of[1], 0) // WHOLE_GPU for node in nodes_of(observed, of[0])]
    largest = max(nodes, default=0)
    size = max(sizes, default=min(largest, math.ceil(most / WHOLE_GPU)))
    return max(1, min(size, largest or size))


def _lead_s(observed: Observed, pool: str) -> float:
    """The usual one, and as much more as the latest of the pool's past occurrences was late."""
    late_s = [
        result.late_s
        for each in observed.reservations
        if each.spec is not None and each.spec.pool in ("", pool)
        for result in results_of(each.document)
        if result.late_s is not None
    ]
    return min(_MOST_LEAD_S, USUAL_LEAD_S + math.ceil(max(late_s, default=0.0) / 60) * 60)


def _reserved(observed: Observed, owner: Key, pool: str, start_s: float, hours: int) -> list[float]:
    """What is reserved in each hour already; what a proposal would take the place of does not count."""
    result = [0.0] * hours
    for each in observed.reservations:
        spec = each.spec
        if spec is None or not _is_of(spec, owner, pool) or _is_replaceable(each, observed.now_s):
            continue
        try:
            windows = occurrences(spec, observed.now_s, start_s + hours * HOUR_S)
        except RecurrenceError:
            continue
        for window in windows:
            for hour in range(hours):
                begin_s = start_s + hour * HOUR_S
                if window.start_s <= begin_s and begin_s + HOUR_S <= window.until_s:
                    result[hour] += spec.gpus * WHOLE_GPU
    return result


def _is_of(spec: Reservation, owner: Key, pool: str) -> bool:
    return (spec.namespace, spec.queue) == owner and spec.pool in ("", pool)


def _is_replaceable(each: Reserved, now_s: float) -> bool:
    """Whether it was made by a forecast, and its lead has not begun, or it is over."""
    if each.spec is None or forecast_mark(each.document) is None:
        return False
    return now_s < each.spec.start_s - each.spec.lead_s or now_s >= each.spec.until_s


def _name(observed: Observed, owner: Key, outlook: Outlook, window: Window, taken: set[str]) -> str:
    """That of an earlier forecast of these hours, or by the hour of the week."""
    for each in observed.reservations:
        spec = each.spec
        if spec is None or not _is_of(spec, owner, outlook.pool) or each.key[1] in taken:
            continue
        overlaps = spec.start_s < window.until_s and window.start_s < spec.until_s
        if overlaps and observed.now_s < spec.until_s and _is_replaceable(each, observed.now_s):
            return each.key[1]
    start = datetime.fromtimestamp(window.start_s, UTC)
    stem = f"forecast-{owner[1]}-{outlook.pool}"
    if len(stem) > _LONGEST_STEM:
        stem = f"{stem[: _LONGEST_STEM - 9].rstrip('.-')}-{zlib.crc32(stem.encode()):08x}"
    name = f"{stem}-{_DAYS[start.weekday()]}-{start.hour:02d}"
    standing = {each.key for each in observed.reservations if not _is_replaceable(each, observed.now_s)}
    # That of this week may still be on.
    return f"{name}-2" if (owner[0], name) in standing or name in taken else name


def _checked(observed: Observed, made: Sequence[Proposal]) -> list[Proposal]:
    """Those that the controller would refuse, as it does it itself, with its reason in place of a manifest."""
    reserved = {}
    for each in made:
        if each.document is not None:
            document = each.document | {"metadata": dict(each.document["metadata"])}
            # The newest: what is there already has precedence.
            document["metadata"]["creationTimestamp"] = datetime.fromtimestamp(observed.now_s, UTC).isoformat()
            reserved[each.name] = read_reserved(document)
    kept = [each for each in observed.reservations if each.name not in reserved]
    reading = read_reservations(replace(observed, reservations=[*kept, *reserved.values()]))
    result = []
    for each in made:
        refusal = reading.refused.get(each.name)
        if refusal is not None:
            reason = Reason("RESERVATION_REFUSED", f"It would be refused ({refusal[0]}): {refusal[1]}")
            result.append(replace(each, reason=reason, document=None))
        else:
            result.append(each)
    return result


def _outdated(observed: Observed, made: Sequence[Proposal]) -> Iterator[Proposal]:
    """Reservations by earlier forecasts, of queues that were looked at, that this one does not ask for any more."""
    looked_at = {(each.queue, each.pool) for each in made if each.forecast is not None}
    names = {each.name for each in made}
    for each in observed.reservations:
        spec = each.spec
        if spec is None or each.name in names or not _is_replaceable(each, observed.now_s):
            continue
        queue = observed.local_queues.get((spec.namespace, spec.queue), "")
        if (queue, spec.pool) in looked_at and observed.now_s < spec.until_s:
            command = f"kubectl delete kaiworeservation -n {each.key[0]} {each.key[1]}"
            text = f"An earlier forecast made {each.name}, and this one does not need it: {command}"
            yield Proposal(queue, spec.pool, Reason("RESERVATION_OUTDATED", text))
