"""The page of the cluster: pools that lend over a day, the ledger of evictions, and data on its way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.core.scheduling.eviction import Cause, Entry, Phase, Verified
from kopt.core.scheduling.overview import Overview, PoolMoment, PoolState, StagedState
from kopt.core.units import format_bytes, format_gpus
from kopt.core.workload.checkpoint import CLAIMED, Source, claimed
from kopt.dashboard.formatting import amount, span
from kopt.dashboard.pages.cluster.figure import reclaims, segments
from kopt.dashboard.pages.cluster.switches import SwitchLine, switch_lines

MOST_POOLS = 12
MOST_LINES = 100
MOST_STAGED = 60
MOST_MOMENTS = 40
DAYS = (1, 7, 30)
DEFAULT_DAYS = 7
PHASES = tuple(phase.value for phase in Phase)
CAUSES = tuple(cause.value for cause in Cause)
SILENT_S = 900.0
"""A pool whose history ends so long ago has nobody who looks after it."""
STUCK_S = 180.0
"""A download that has told nothing for so long."""
_DAY_S = 86_400.0
_CAUSE_TEXTS: Mapping[Cause, str] = {
    Cause.PREEMPTED: "pre-empted",
    Cause.LENDING: "loan taken back",
    Cause.DRAINED: "drained",
    Cause.NODE_LOST: "node lost",
    Cause.DEACTIVATED: "deactivated",
    Cause.SUSPENDED: "suspended",
    Cause.DELETED: "pods deleted",
    Cause.UNKNOWN: "not known",
}
_VERBS = {"lend": "Lent {} more", "reclaim": "Took {} back", "keep": "Changed nothing"}
_FORECASTS = {
    "Stale": "Forecasts are stale: nothing new is lent, and GPUs are reclaimed by the reactive rule.",
    "Missing": "There are no forecasts: nothing new is lent, and GPUs are reclaimed by the reactive rule.",
}
_MODES = {
    "observe": "Mode observe: nothing is changed; figures show what would be lent.",
    "annotate": "Mode annotate: only advice is written; figures show what would be lent.",
}


@dataclass(frozen=True)
class LedgerChoice:
    """What the reader asked for; unknown values fall back to the defaults."""

    text: str = ""
    phase: str = ""
    cause: str = ""
    days: int = DEFAULT_DAYS

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> "LedgerChoice":
        phase, cause = query.get("state", ""), query.get("cause", "")
        days = next((day for day in DAYS if query.get("days") == str(day)), DEFAULT_DAYS)
        return cls(query.get("q", "")[:253], phase if phase in PHASES else "", cause if cause in CAUSES else "", days)

    def takes(self, entry: Entry, now_s: float) -> bool:
        """What waits is shown however long ago it was evicted."""
        eviction, waits = entry.eviction, entry.outcome.phase is Phase.WAITING
        searched = " ".join((f"{eviction.namespace}/{eviction.workload.name}", eviction.by, eviction.for_whom))
        return (
            self.text.casefold() in searched.casefold()
            and self.phase in ("", entry.outcome.phase)
            and self.cause in ("", eviction.cause)
            and (waits or eviction.evicted_at_s >= now_s - self.days * _DAY_S)
        )


@dataclass(frozen=True)
class PoolCard:
    """A pool in words. ``chart`` is the id of its chart, empty where there is no history; ``moments`` are those at
    which the loan changed, and one of each hour, the newest first."""

    state: PoolState
    chart: str
    label: str
    decision: str
    remarks: tuple[str, ...]
    moments: tuple[PoolMoment, ...]
    reclaimed: float
    """GPUs taken back in the history that is shown."""


@dataclass(frozen=True)
class Line:
    """One eviction in words."""

    entry: Entry
    cause: str
    gpus: str
    lost: str
    back: str
    verified: str
    state: str


@dataclass(frozen=True)
class StagedCard:
    """Data in words. ``percent`` is None where nobody knows how much there is."""

    state: StagedState
    badge: str
    percent: float | None
    far: str
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class ClusterPage:
    """``lines`` of the ``matching`` evictions among the ``total``; ``lost`` in words of those that match."""

    overview: Overview
    pools: tuple[PoolCard, ...]
    lines: tuple[Line, ...]
    matching: int
    total: int
    waiting: int
    lost: str
    staged: tuple[StagedCard, ...]
    lent: str
    switches: tuple[SwitchLine, ...]


def cluster_page(overview: Overview, choice: LedgerChoice | None = None) -> ClusterPage:
    """Everything that the page says; nothing in the objects makes this raise."""
    wanted, now_s = choice or LedgerChoice(), overview.now_s
    pools = sorted(overview.pools, key=lambda pool: (pool.reclaiming is None, pool.name))[:MOST_POOLS]
    entries = sorted((entry for entry in overview.ledger if wanted.takes(entry, now_s)), key=_newest_first)
    staged = sorted(
        overview.staged,
        key=lambda staged_state: (_STAGE_ORDER.get(staged_state.phase, 9), staged_state.namespace, staged_state.name),
    )
    lent = [pool.lent for pool in overview.pools if pool.lent is not None and pool.mode not in _MODES]
    return ClusterPage(
        overview,
        tuple(_pool(pool_state, index, now_s) for index, pool_state in enumerate(pools)),
        tuple(_line(entry, now_s) for entry in entries[:MOST_LINES]),
        len(entries),
        len(overview.ledger),
        sum(entry.outcome.phase is Phase.WAITING for entry in overview.ledger),
        _lost(entries),
        tuple(_staged(staged_state, now_s) for staged_state in staged[:MOST_STAGED]),
        amount(sum(lent)) if lent else "–",
        () if overview.switches is None else switch_lines(overview.switches),
    )


_STAGE_ORDER = {"Failed": 0, "Staging": 1, "Waiting": 2, "Ready": 3, "Evicted": 4}


def _newest_first(entry: Entry) -> tuple[float, str]:
    return -entry.eviction.evicted_at_s, entry.eviction.name


def _pool(pool_state: PoolState, index: int, now_s: float) -> PoolCard:
    recent = [moment for moment in pool_state.history if moment.at_s > now_s - _DAY_S]
    reclaimed = sum(by for _, by in reclaims(segments(recent)))
    label = (
        f"{pool_state.name}: {_gpus(pool_state.lent)} of {_gpus(pool_state.gpus)} GPUs lent, "
        f"{_gpus(pool_state.service)} asked by services, "
        f"{_gpus(pool_state.provision)} provisioned, {amount(reclaimed)} taken back over the day"
    )
    return PoolCard(
        pool_state,
        f"lending{index}" if len(recent) > 1 else "",
        label,
        _decided(pool_state),
        _pool_remarks(pool_state, now_s),
        _moments(recent),
        reclaimed,
    )


def _gpus(value: float | None) -> str:
    return amount(value)


def _decided(pool_state: PoolState) -> str:
    """The last decision in a sentence; its reasons stand beside it."""
    if not pool_state.verb:
        return "No decision has been made yet."
    gpus = f"{amount(pool_state.verb_gpus)} GPU{'' if pool_state.verb_gpus == 1 else 's'}"
    return _VERBS.get(pool_state.verb, f"Decided to {pool_state.verb} {{}}").format(gpus)


def _pool_remarks(pool_state: PoolState, now_s: float) -> tuple[str, ...]:
    result = [remark for remark in (_MODES.get(pool_state.mode, ""), _FORECASTS.get(pool_state.forecast, "")) if remark]
    back = pool_state.reclaiming
    if back is not None:
        remaining = (
            ""
            if back.by_s is None
            else (
                f", in {span(back.by_s - now_s)} at the latest"
                if back.by_s > now_s
                else f", {span(now_s - back.by_s)} late"
            )
        )
        whom = f" from {_names(back.victims)}" if back.victims else ""
        result.insert(0, f"{_gpus(back.gpus)} GPUs are being taken back{whom}{remaining}.")
    newest_s = max([pool_state.decided_at_s or 0.0, *(moment.at_s for moment in pool_state.history[-1:])])
    if newest_s and now_s - newest_s > SILENT_S:
        result.append(f"Its status is {span(now_s - newest_s)} old: does `kopt controller lending` run?")
    return (*result, *pool_state.troubles)


def _names(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _moments(history: Sequence[PoolMoment]) -> tuple[PoolMoment, ...]:
    pool_moments, before = [], None
    for item in history:
        if before is None or item.lent != before.lent or item.at_s // 3600 != before.at_s // 3600:
            pool_moments.append(item)
        before = item
    if before is not None and pool_moments[-1] is not before:
        pool_moments.append(before)
    return tuple(pool_moments[: -MOST_MOMENTS - 1 : -1])


def _line(entry: Entry, now_s: float) -> Line:
    eviction, after = entry.eviction, entry.outcome
    lost = "not known" if eviction.lost_gpu_s is None else f"{_gpu_time(eviction.lost_gpu_s)}{claimed(eviction.source)}"
    verified = {Verified.YES: "yes", Verified.NO: "no: at another step", Verified.UNKNOWN: "not seen"}
    back = {Phase.FINISHED: "has finished", Phase.GONE: "is gone"}.get(after.phase, "")
    if after.phase is Phase.WAITING:
        back = f"waits for {span(now_s - eviction.evicted_at_s)}"
    elif after.resumed_at_s is not None:
        back = f"after {span(after.resumed_at_s - eviction.evicted_at_s)}" + (f", {back}" if back else "")
    elif after.phase is Phase.RESUMED:
        back = "is back"
    return Line(
        entry,
        _CAUSE_TEXTS[eviction.cause],
        format_gpus(max(0, eviction.gpus)),
        lost,
        back,
        verified[after.verified] if after.verified else "–",
        {Phase.WAITING: "pending", Phase.RESUMED: "ok"}.get(after.phase, "fallback"),
    )


def _lost(entries: Sequence[Entry]) -> str:
    lost_gpu_s = [entry.eviction.lost_gpu_s for entry in entries if entry.eviction.lost_gpu_s is not None]
    claims = any(entry.eviction.source is Source.CLAIM and entry.eviction.lost_gpu_s is not None for entry in entries)
    return _gpu_time(sum(lost_gpu_s)) + (f" (some {CLAIMED})" if claims else "") if lost_gpu_s else "–"


def _gpu_time(gpu_s: float) -> str:
    for size, word in ((3600.0, "GPU-h"), (60.0, "GPU-min")):
        if gpu_s >= 2 * size:
            return f"{amount(gpu_s / size)} {word}"
    return f"{amount(gpu_s)} GPU-s"


def _staged(staged_state: StagedState, now_s: float) -> StagedCard:
    share = staged_state.share
    details = []
    if staged_state.bytes is not None and staged_state.bytes_done is not None and staged_state.phase != "Ready":
        details.append(f"{format_bytes(staged_state.bytes_done)} of {format_bytes(staged_state.bytes)}")
    elif staged_state.bytes is not None:
        details.append(format_bytes(staged_state.bytes))
    if staged_state.objects:
        details.append(
            f"{amount(staged_state.objects_done or 0)} of {amount(staged_state.objects)} objects"
            if staged_state.phase != "Ready"
            else f"{amount(staged_state.objects)} objects"
        )
    if staged_state.phase == "Staging" and staged_state.bytes_per_second is not None:
        details.append(f"{format_bytes(int(staged_state.bytes_per_second))}/s")
    if staged_state.phase == "Staging" and staged_state.remaining_s is not None:
        details.append(f"about {span(max(0.0, staged_state.remaining_s))} left")
    badge = {"Ready": "ok", "Failed": "refused", "Staging": "fallback"}.get(staged_state.phase, "pending")
    return StagedCard(
        staged_state,
        badge,
        None if share is None else round(share * 100, 1),
        ", ".join(details),
        _staged_remarks(staged_state, now_s),
    )


def _staged_remarks(staged_state: StagedState, now_s: float) -> tuple[str, ...]:
    result = []
    if staged_state.phase == "Failed" or staged_state.message:
        reason = f"{staged_state.reason}: " if staged_state.reason else ""
        result.append(f"{reason}{staged_state.message or 'no reason is given'}")
    if staged_state.phase == "Failed" and staged_state.retry_at_s is not None and staged_state.retry_at_s > now_s:
        result.append(f"Next attempt in {span(staged_state.retry_at_s - now_s)}.")
    if staged_state.phase == "Staging" and staged_state.at_s is not None and now_s - staged_state.at_s > STUCK_S:
        result.append(f"No progress has been reported for {span(now_s - staged_state.at_s)}.")
    if staged_state.users:
        result.append(f"Used by {_names(staged_state.users)}.")
    return tuple(result)
