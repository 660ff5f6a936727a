"""The status of a pool, from the plan and its outcome."""

from dataclasses import replace

from kopt.controllers.lending.forecasts import PoolForecasts
from kopt.controllers.lending.plan import Evaluation
from kopt.controllers.lending.views import Pool
from kopt.core.scheduling.lending_pool import (
    Condition,
    ForecastState,
    HistoryPoint,
    LastDecision,
    PoolStatus,
    Reclaiming,
)
from kopt.core.units import WHOLE_GPU, counted

_MOST_HISTORY = 288


def status_after(
    pool: Pool, evaluation: Evaluation, forecasts: PoolForecasts, reclaiming: Reclaiming | None, history_s: float
) -> PoolStatus:
    """The status once the plan is applied."""
    before, plan = pool.status, evaluation.plan
    decision = LastDecision(plan.verb, plan.gpus, evaluation.now_s, plan.reasons)
    status = PoolStatus(
        pool.generation,
        plan.lent,
        evaluation.borrowed,
        evaluation.service_gpus,
        plan.provision,
        evaluation.lead.seconds,
        plan.caution,
        evaluation.forecast,
        forecasts.at_s,
        _model(evaluation),
        decision,
        reclaiming,
        evaluation.memory,
        before.history,
        _conditions(before, evaluation, forecasts),
    )
    return replace(status, history=_history(status, evaluation, history_s))


def refused(pool: Pool, now_s: float) -> PoolStatus:
    """The status of a pool whose spec cannot be read: everything else stays."""
    return replace(
        pool.status,
        generation=pool.generation,
        conditions=(_condition(pool.status, "Ready", False, "InvalidSpec", pool.error, now_s),),
    )


def is_news(before: PoolStatus, after: PoolStatus, tick_s: float) -> bool:
    """Whether this has to be written now; unchanged states are written once in ``tick_s``."""

    def reported(pool_status: PoolStatus) -> tuple[object, ...]:
        conditions = tuple((it.type, it.status, it.reason) for it in pool_status.conditions)
        reclaiming = pool_status.reclaiming and (
            pool_status.reclaiming.gpus,
            pool_status.reclaiming.victims,
            int(pool_status.reclaiming.by_s),
        )
        return (
            pool_status.generation,
            pool_status.lent_gpus,
            pool_status.borrowed_gpus,
            pool_status.service_gpus,
            pool_status.forecast,
            reclaiming,
            conditions,
        )

    last_s = before.decision.at_s if before.decision else 0.0
    now_s = after.decision.at_s if after.decision else 0.0
    return reported(before) != reported(after) or int(now_s // tick_s) != int(last_s // tick_s)


def _model(evaluation: Evaluation) -> str:
    result = dict.fromkeys(f"{model.name}/{model.version}" for model in evaluation.plan.models)
    return ", ".join(result)[:253]


def _history(status: PoolStatus, evaluation: Evaluation, every_s: float) -> tuple[HistoryPoint, ...]:
    at_s = evaluation.now_s // every_s * every_s
    # A clock that was ahead must not stop the history until then.
    history = tuple(history_point for history_point in status.history if history_point.at_s <= at_s)
    point = HistoryPoint(
        at_s,
        status.lent_gpus,
        status.borrowed_gpus,
        status.service_gpus,
        status.provision_gpus,
        evaluation.plan.p50,
        evaluation.plan.p99,
    )
    if history and history[-1].at_s >= at_s:
        # The first reconcile of a pool comes before its first forecast.
        return (*history[:-1], point) if history[-1].p50 is None else history
    return (*history, point)[-_MOST_HISTORY:]


def _conditions(before: PoolStatus, evaluation: Evaluation, forecasts: PoolForecasts) -> tuple[Condition, ...]:
    problems = [item.problem for item in evaluation.queues if item.problem]
    first = problems[0] if problems else None
    fresh = evaluation.forecast is ForecastState.FRESH
    why = (
        "Lending follows the forecasts."
        if fresh
        else (f"Nothing new is lent: {forecasts.error or 'there is no forecast that is new enough'}.")
    )
    missing = evaluation.missing + sum(queue.terminating_gpus for queue in evaluation.queues)
    gpus = missing // WHOLE_GPU
    verb = "is" if gpus == 1 else "are"
    back = f"{counted(gpus, 'GPU')} {verb} being taken back." if missing else "Nothing is being taken back."
    barred = next((item.barred for item in evaluation.queues if item.barred), None)
    stoppable = (
        [_condition(before, "BorrowersStoppable", False, _camel(barred.code), barred.message, evaluation.now_s)]
        if barred
        else []
    )
    return (
        *stoppable,
        _condition(
            before,
            "Ready",
            first is None,
            _camel(first.code) if first else "Watching",
            first.message if first else "Services and borrowers are watched.",
            evaluation.now_s,
        ),
        _condition(before, "ForecastsFresh", fresh, evaluation.forecast.value, why, evaluation.now_s),
        _condition(before, "Reclaiming", bool(missing), "TakingBack" if missing else "Idle", back, evaluation.now_s),
    )


def _condition(before: PoolStatus, kind: str, status: bool, reason: str, message: str, now_s: float) -> Condition:
    previous = next((condition for condition in before.conditions if condition.type == kind), None)
    since_s = previous.since_s if previous and previous.status == status else now_s
    return Condition(kind, status, reason, message, since_s)


def _camel(code: str) -> str:
    return "".join(word.capitalize() for word in code.split("_"))
