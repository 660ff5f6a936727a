"""A pool's status, from what was decided and done."""

from dataclasses import replace

from kopt.controllers.reallocation.deciding import Judged
from kopt.controllers.reallocation.forecasts import Known
from kopt.controllers.reallocation.views import Pool
from kopt.core.lending_pools import (
    Condition,
    ForecastState,
    HistoryPoint,
    LastDecision,
    PoolStatus,
    Reclaiming,
)
from kopt.core.units import WHOLE_GPU

_MOST_HISTORY = 288


def status_after(pool: Pool, judged: Judged, known: Known, reclaiming: Reclaiming | None,
                 history_s: float) -> PoolStatus:  # fmt: skip
    """What stands on the pool now that this was carried out."""
    before, plan = pool.status, judged.plan
    decision = LastDecision(plan.verb, plan.gpus, judged.now_s, plan.reasons)
    status = PoolStatus(
        pool.generation, plan.lent, judged.borrowed, judged.service_gpus, plan.provision, judged.lead.seconds,
        plan.caution, judged.forecast, known.at_s, _model(judged), decision, reclaiming, judged.memory,
        before.history, _conditions(before, judged, known),
    )  # fmt: skip
    return replace(status, history=_history(status, judged, history_s))


def refused(pool: Pool, now_s: float) -> PoolStatus:
    """Of a pool whose spec cannot be read: everything stays as it was."""
    return replace(
        pool.status,
        generation=pool.generation,
        conditions=(_condition(pool.status, "Ready", False, "InvalidSpec", pool.trouble, now_s),),
    )


def is_news(before: PoolStatus, after: PoolStatus, tick_s: float) -> bool:
    """Whether this has to be written now; what only goes on is written once in ``tick_s``."""

    def told(one: PoolStatus) -> tuple[object, ...]:
        conditions = tuple((it.type, it.status, it.reason) for it in one.conditions)
        going = one.reclaiming and (one.reclaiming.gpus, one.reclaiming.victims, int(one.reclaiming.by_s))
        return (one.generation, one.lent_gpus, one.borrowed_gpus, one.service_gpus, one.forecast, going, conditions)

    last_s = before.decision.at_s if before.decision else 0.0
    now_s = after.decision.at_s if after.decision else 0.0
    return told(before) != told(after) or int(now_s // tick_s) != int(last_s // tick_s)


def _model(judged: Judged) -> str:
    found = dict.fromkeys(f"{one.name}/{one.version}" for one in judged.plan.models)
    return ", ".join(found)[:253]


def _history(status: PoolStatus, judged: Judged, every_s: float) -> tuple[HistoryPoint, ...]:
    at_s = judged.now_s // every_s * every_s
    # A clock that was ahead must not stop the history until then.
    history = tuple(one for one in status.history if one.at_s <= at_s)
    point = HistoryPoint(at_s, status.lent_gpus, status.borrowed_gpus, status.service_gpus, status.provision_gpus,
                         judged.plan.p50, judged.plan.p99)  # fmt: skip
    if history and history[-1].at_s >= at_s:
        # The first look of a pool comes before its first forecast.
        return (*history[:-1], point) if history[-1].p50 is None else history
    return (*history, point)[-_MOST_HISTORY:]


def _conditions(before: PoolStatus, judged: Judged, known: Known) -> tuple[Condition, ...]:
    problems = [one.problem for one in judged.queues if one.problem]
    first = problems[0] if problems else None
    fresh = judged.forecast is ForecastState.FRESH
    why = "Lending follows the forecasts." if fresh else (
        f"Nothing new is lent: {known.trouble or 'there is no forecast that is new enough'}.")  # fmt: skip
    missing = judged.missing + sum(queue.leaving for queue in judged.queues)
    back = f"{missing // WHOLE_GPU} GPUs are being taken back." if missing else "Nothing is being taken back."
    return (
        _condition(before, "Ready", first is None, _camel(first.code) if first else "Watching",
                   first.message if first else "Services and borrowers are watched.", judged.now_s),
        _condition(before, "ForecastsFresh", fresh, judged.forecast.value, why, judged.now_s),
        _condition(before, "Reclaiming", bool(missing), "TakingBack" if missing else "Idle", back, judged.now_s),
    )  # fmt: skip


def _condition(before: PoolStatus, kind: str, status: bool, reason: str, message: str, now_s: float) -> Condition:
    known = next((one for one in before.conditions if one.type == kind), None)
    since_s = known.since_s if known and known.status == status else now_s
    return Condition(kind, status, reason, message, since_s)


def _camel(code: str) -> str:
    return "".join(word.capitalize() for word in code.split("_"))
