"""One day of a pool that lends, as the lending policy decides it: what is kept, what is lent, what is taken back.

Demand is that of generated services; forecasts are the demand that comes, with the error of a fair forecaster. In: a
seed and the size of the pool. Out: a moment for every five minutes. Takes a quarter of a second.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kopt.core.reason import Reason
from kopt.data.demand.generator import DAY_S, generate
from kopt.data.demand.table import Array
from kopt.features.demand import fill_gaps
from kopt.policies.lending.policy import LendingSettings, LendingState, Pool, ServiceDemand, decide

STEP_S = 300
MOMENTS = DAY_S // STEP_S
_RECENT = 6
_ERROR = {0.5: 1.0, 0.9: 1.08, 0.95: 1.11, 0.99: 1.18}
"""A forecast's quantiles as multiples of the demand that comes."""


@dataclass(frozen=True)
class PoolDay:
    """A moment of the day; GPUs, whole. ``verb`` is ``lend``, ``reclaim`` or ``keep``, by ``gpus``."""

    service: int
    provision: int
    p50: int
    p99: int
    lent: int
    borrowed: int
    verb: str
    gpus: int
    reasons: tuple[Reason, ...]


def record_day(
    names: Sequence[str], *, gpus: int = 32, lead_s: float = 1800.0, board_gpus: int = 4, seed: int = 3
) -> tuple[PoolDay, ...]:
    """A day from midnight on, of services that fill the pool at their peak. Lent is whole boards of ``board_gpus``."""
    demand = _demand(names, gpus, seed)
    ahead = int(lead_s // STEP_S)
    settings = LendingSettings(hysteresis_gpus=board_gpus)
    state, before, moments = LendingState(), 0, []
    # The day before warms the policy up: its state at midnight is that of a pool that runs.
    for step in range(MOMENTS, 3 * MOMENTS):
        services = [_service(name, values, step, ahead) for name, values in zip(names, demand, strict=True)]
        decision, state = decide(Pool("inference", gpus, {lead_s: services}), state, step * float(STEP_S), settings)
        lent = state.lent_gpus // board_gpus * board_gpus
        change = lent - before
        moments.append(
            PoolDay(
                service=math.ceil(sum(values[step] for values in demand)),
                provision=gpus - state.lent_gpus,
                p50=math.ceil(sum(service.quantiles[0.5] for service in services)),
                p99=math.ceil(sum(service.quantiles[0.99] for service in services)),
                lent=lent,
                borrowed=max(0, lent - board_gpus * (step // 40 % 4 == 0)),
                verb="keep" if not change else "lend" if change > 0 else "reclaim",
                gpus=abs(change),
                reasons=decision.reasons,
            )
        )
        before = lent
    return tuple(moments[MOMENTS:])


def _service(name: str, values: Array, step: int, ahead: int) -> ServiceDemand:
    coming = float(values[step + ahead])
    recent = float(values[step - _RECENT + 1 : step + 1].max())
    return ServiceDemand(name, recent, 1.0, {level: factor * coming for level, factor in _ERROR.items()})


def _demand(names: Sequence[str], gpus: int, seed: int) -> list[Array]:
    """GPUs that each service needs, shape (buckets,) each; together they fill the pool once in a while."""
    series = generate(len(names), 5.0, STEP_S, seed)
    values = [_smoothed(fill_gaps(item.value)) for item in series]
    scaled = [value / np.quantile(value, 0.99) for value in values]
    together = np.sum(scaled, axis=0)
    return [value * (gpus * 0.9 / float(np.quantile(together, 0.995))) for value in scaled]


def _smoothed(value: Array) -> Array:
    """Means of half an hour, as autoscalers see demand."""
    return np.convolve(value, np.full(_RECENT, 1 / _RECENT), mode="same")
