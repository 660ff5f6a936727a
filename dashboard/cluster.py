"""The page of the cluster: pools that lend over a day, the ledger of evictions, and data on its way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.core.evictions import Cause, Entry, Phase, Verified
from kopt.core.overview import Overview, PoolMoment, PoolState, StagedState
from kopt.core.units import format_bytes, format_gpus
from kopt.dashboard.cluster_figure import reclaims, segments
from kopt.dashboard.wording import amount, span

POOLS_SHOWN = 12
LINES_SHOWN = 100
STAGED_SHOWN = 60
MOMENTS_SHOWN = 40
DAYS = (1, 7, 30)
DEFAULT_DAYS = 7
PHASES = tuple(one.value for one in Phase)
CAUSES = tuple(one.value for one in Cause)
SILENT_S = 900.0
"""A pool whose history ends so long ago has nobody who looks after it."""
STUCK_S = 180.0
"""A download that has told nothing for so long."""
_DAY_S = 86_400.0
_CAUSE_WORDS: Mapping[Cause, str] = {
    Cause.PREEMPTED: "pre-empted", Cause.LENDING: "loan taken back", Cause.DRAINED: "drained",
    Cause.NODE_LOST: "node lost", Cause.DEACTIVATED: "deactivated", Cause.SUSPENDED: "suspended",
    Cause.DELETED: "pods deleted", Cause.UNKNOWN: "not known",
}  # fmt: skip
_VERBS = {"lend": "Lent {} more", "reclaim": "Took {} back", "keep": "Changed nothing"}
_FORECASTS = {
    "Stale": "Its forecasts are stale: nothing new is lent, and GPUs are taken back by the reactive rule.",
    "Missing": "There are no forecasts for it: nothing new is lent, and GPUs are taken back by the reactive rule.",
}  # fmt: skip
_MODES = {
    "observe": "It only watches (mode observe): figures are what it would lend.",
    "annotate": "It only advises (mode annotate): figures are what it would lend.",
}  # fmt: skip


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
        days = next((one for one in DAYS if query.get("days") == str(one)), DEFAULT_DAYS)
        return cls(query.get("q", "")[:253], phase if phase in PHASES else "", cause if cause in CAUSES else "", days)

    def takes(self, one: Entry, now_s: float) -> bool:
        """What waits is shown however long ago it was evicted."""
        eviction, waits = one.eviction, one.outcome.phase is Phase.WAITING
        words = " ".join((f"{eviction.namespace}/{eviction.workload.name}", eviction.by, eviction.for_whom))
        return (
            self.text.casefold() in words.casefold() and self.phase in ("", one.outcome.phase)
            and self.cause in ("", eviction.cause) and (waits or eviction.evicted_at_s >= now_s - self.days * _DAY_S)
        )  # fmt: skip


@dataclass(frozen=True)
class PoolCard:
    """A pool in words. ``chart`` is the id of its chart, empty where there is no history; ``moments`` are those at
    which the loan changed, and one of each hour, the newest first."""

    state: PoolState
    chart: str
    label: str
    decision: str
    notes: tuple[str, ...]
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
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ClusterPage:
    """``lines`` of the ``found`` evictions among the ``known``; ``lost`` in words of those found."""

    overview: Overview
    pools: tuple[PoolCard, ...]
    lines: tuple[Line, ...]
    found: int
    known: int
    waiting: int
    lost: str
    staged: tuple[StagedCard, ...]
    lent: str


def cluster_page(overview: Overview, choice: LedgerChoice | None = None) -> ClusterPage:
    """Everything that the page says; nothing in the objects makes this raise."""
    wanted, now_s = choice or LedgerChoice(), overview.now_s
    pools = sorted(overview.pools, key=lambda one: (one.reclaiming is None, one.name))[:POOLS_SHOWN]
    found = sorted((one for one in overview.ledger if wanted.takes(one, now_s)), key=_newest_first)
    staged = sorted(overview.staged, key=lambda one: (_STAGE_ORDER.get(one.phase, 9), one.namespace, one.name))
    lent = [one.lent for one in overview.pools if one.lent is not None and one.mode not in _MODES]
    return ClusterPage(
        overview, tuple(_pool(one, index, now_s) for index, one in enumerate(pools)),
        tuple(_line(one, now_s) for one in found[:LINES_SHOWN]), len(found), len(overview.ledger),
        sum(one.outcome.phase is Phase.WAITING for one in overview.ledger), _lost(found),
        tuple(_staged(one, now_s) for one in staged[:STAGED_SHOWN]), amount(sum(lent)) if lent else "–",
    )  # fmt: skip


_STAGE_ORDER = {"Failed": 0, "Staging": 1, "Waiting": 2, "Ready": 3, "Evicted": 4}


def _newest_first(one: Entry) -> tuple[float, str]:
    return -one.eviction.evicted_at_s, one.eviction.name


def _pool(one: PoolState, index: int, now_s: float) -> PoolCard:
    recent = [moment for moment in one.history if moment.at_s > now_s - _DAY_S]
    taken = sum(by for _, by in reclaims(segments(recent)))
    label = (
        f"{one.name}: {_gpus(one.lent)} of {_gpus(one.gpus)} GPUs lent, {_gpus(one.service)} asked by services, "
        f"{_gpus(one.provision)} provisioned, {amount(taken)} taken back over the day"
    )
    return PoolCard(one, f"lending{index}" if len(recent) > 1 else "", label, _decided(one), _pool_notes(one, now_s),
                    _moments(recent), taken)  # fmt: skip


def _gpus(value: float | None) -> str:
    return amount(value)


def _decided(one: PoolState) -> str:
    """The last decision in a sentence; its reasons stand beside it."""
    if not one.verb:
        return "Nothing has been decided about it yet."
    gpus = f"{amount(one.verb_gpus)} GPU{'' if one.verb_gpus == 1 else 's'}"
    return _VERBS.get(one.verb, f"Decided to {one.verb} {{}}").format(gpus)


def _pool_notes(one: PoolState, now_s: float) -> tuple[str, ...]:
    found = [words for words in (_MODES.get(one.mode, ""), _FORECASTS.get(one.forecast, "")) if words]
    back = one.reclaiming
    if back is not None:
        left = "" if back.by_s is None else (f", in {span(back.by_s - now_s)} at the latest" if back.by_s > now_s
                                             else f", {span(now_s - back.by_s)} late")  # fmt: skip
        whom = f" from {_names(back.victims)}" if back.victims else ""
        found.insert(0, f"{_gpus(back.gpus)} GPUs are being taken back{whom}{left}.")
    newest_s = max([one.decided_at_s or 0.0, *(moment.at_s for moment in one.history[-1:])])
    if newest_s and now_s - newest_s > SILENT_S:
        found.append(f"Nobody has said anything about it for {span(now_s - newest_s)}: does `kopt controller "
                     "reallocation` run?")  # fmt: skip
    return (*found, *one.troubles)


def _names(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _moments(history: Sequence[PoolMoment]) -> tuple[PoolMoment, ...]:
    found, before = [], None
    for one in history:
        if before is None or one.lent != before.lent or one.at_s // 3600 != before.at_s // 3600:
            found.append(one)
        before = one
    if before is not None and found[-1] is not before:
        found.append(before)
    return tuple(found[: -MOMENTS_SHOWN - 1 : -1])


def _line(entry: Entry, now_s: float) -> Line:
    one, after = entry.eviction, entry.outcome
    lost = "not known" if one.lost_gpu_s is None else _gpu_time(one.lost_gpu_s)
    verified = {Verified.YES: "yes", Verified.NO: "no: at another step", Verified.UNKNOWN: "not seen"}
    back = {Phase.FINISHED: "has finished", Phase.GONE: "is gone"}.get(after.phase, "")
    if after.phase is Phase.WAITING:
        back = f"waits for {span(now_s - one.evicted_at_s)}"
    elif after.resumed_at_s is not None:
        back = f"after {span(after.resumed_at_s - one.evicted_at_s)}" + (f", {back}" if back else "")
    elif after.phase is Phase.RESUMED:
        back = "is back"
    return Line(entry, _CAUSE_WORDS[one.cause], format_gpus(max(0, one.gpus)), lost, back,
                verified[after.verified] if after.verified else "–",
                {Phase.WAITING: "pending", Phase.RESUMED: "ok"}.get(after.phase, "fallback"))  # fmt: skip


def _lost(found: Sequence[Entry]) -> str:
    known = [one.eviction.lost_gpu_s for one in found if one.eviction.lost_gpu_s is not None]
    return _gpu_time(sum(known)) if known else "–"


def _gpu_time(gpu_s: float) -> str:
    for size, word in ((3600.0, "GPU-h"), (60.0, "GPU-min")):
        if gpu_s >= 2 * size:
            return f"{amount(gpu_s / size)} {word}"
    return f"{amount(gpu_s)} GPU-s"


def _staged(one: StagedState, now_s: float) -> StagedCard:
    share = one.share
    words = []
    if one.bytes is not None and one.bytes_done is not None and one.phase != "Ready":
        words.append(f"{format_bytes(one.bytes_done)} of {format_bytes(one.bytes)}")
    elif one.bytes is not None:
        words.append(format_bytes(one.bytes))
    if one.objects:
        words.append(f"{amount(one.objects_done or 0)} of {amount(one.objects)} objects" if one.phase != "Ready"
                     else f"{amount(one.objects)} objects")  # fmt: skip
    if one.phase == "Staging" and one.bytes_per_second is not None:
        words.append(f"{format_bytes(int(one.bytes_per_second))}/s")
    if one.phase == "Staging" and one.seconds_left is not None:
        words.append(f"about {span(max(0.0, one.seconds_left))} left")
    badge = {"Ready": "ok", "Failed": "refused", "Staging": "fallback"}.get(one.phase, "pending")
    return StagedCard(one, badge, None if share is None else round(share * 100, 1), ", ".join(words),
                      _staged_notes(one, now_s))  # fmt: skip


def _staged_notes(one: StagedState, now_s: float) -> tuple[str, ...]:
    found = []
    if one.phase == "Failed" or one.message:
        reason = f"{one.reason}: " if one.reason else ""
        found.append(f"{reason}{one.message or 'no reason is given'}")
    if one.phase == "Failed" and one.retry_at_s is not None and one.retry_at_s > now_s:
        found.append(f"It is tried again in {span(one.retry_at_s - now_s)}.")
    if one.phase == "Staging" and one.at_s is not None and now_s - one.at_s > STUCK_S:
        found.append(f"It has told nothing for {span(now_s - one.at_s)}.")
    if one.users:
        found.append(f"Used by {_names(one.users)}.")
    return tuple(found)
