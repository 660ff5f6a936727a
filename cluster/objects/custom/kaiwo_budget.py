"""``KaiwoBudget`` objects as core types."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.core.cost.budgets import Budget, BudgetAction, BudgetException, BudgetStanding, BudgetState, Period
from kopt.core.units import UnitError, parse_thousandths


def budget_of(document: Object) -> Budget:
    """The spec. Raises ValueError for one that cannot be meant; the message names the field."""
    name, spec = document["metadata"]["name"], mapping(document, "spec")
    target, limit = mapping(spec, "target"), mapping(spec, "limit")
    try:
        gpu_hours = parse_thousandths(limit["gpuHours"]) if "gpuHours" in limit else 0
        micro = parse_thousandths(limit["amount"]) * 1000 if "amount" in limit else 0
        return Budget(
            name,
            Period(text(spec, "period") or Period.MONTH),
            gpu_hours,
            micro,
            text(limit, "currency") or "USD",
            text(target, "namespace"),
            text(target, "localQueue"),
            text(target, "clusterQueue"),
            {str(key): str(value) for key, value in mapping(target, "labels").items()},
            _percent(spec, "softPercent", 80),
            _percent(spec, "hardPercent", 100),
            BudgetAction(text(spec, "action") or BudgetAction.REPORT),
            tuple(_exception(item) for _, item in items(spec, "exceptions")),
        )
    except (UnitError, KeyError) as error:
        raise ValueError(f"KaiwoBudget {name} cannot be read: {error}") from error


def standing_of(document: Object) -> BudgetStanding:
    """The spec, and what the status says of it. Raises ValueError for a spec that cannot be meant; a status that cannot
    be read is unknown."""
    budget, status = budget_of(document), mapping(document, "status")
    try:
        state = BudgetState(text(status, "state"))
    except ValueError:
        state = BudgetState.UNKNOWN
    limit = budget.gpu_hours_milli / 1000 if budget.gpu_hours_milli else budget.micro / 1_000_000
    return BudgetStanding(
        budget,
        state,
        _number(status, "gpuHours" if budget.gpu_hours_milli else "amount"),
        limit,
        _number(status, "projected"),
        text(status, "message"),
        tuple(str(name) for _, name in items(status, "heldQueues")),
    )


def _number(status: Mapping[str, Any], field: str) -> float:
    try:
        value = float(text(status, field) or 0.0)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value >= 0 else 0.0


def _percent(spec: Mapping[str, Any], field: str, default: int) -> int:
    value = at(spec, field)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _exception(item: Any) -> BudgetException:
    try:
        until_ms = int(datetime.fromisoformat(text(item, "until")).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"spec.exceptions: until {text(item, 'until')[:40]!r} is no time") from error
    return BudgetException(until_ms, text(item, "reason"), text(item, "by"))
