"""Lending advice per pool, made from the newest forecasts of its services as they come in."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kopt.core.prediction import Prediction
from kopt.policies.lending.policy import LendingSettings, LendingState, Pool, ServiceDemand, decide, lendable_curve
from kopt.serving.demand.monitoring import PredictionTable
from kopt.serving.demand.service import Observation
from kopt.serving.http.sharing import KeptByCaller

STALE_S = 3600.0
"""A service without a forecast for this long no longer counts in its pool."""


class Adviser:
    """Keeps the newest forecast of every service whose request named its GPUs; writes advice to the shared table.

    ``observe`` runs on the observer's thread. At most ``most`` services are kept; the caller with most of
    them loses its oldest first.
    """

    def __init__(self, table: PredictionTable, settings: LendingSettings | None = None, most: int = 5000) -> None:
        self._table, self._settings = table, settings or LendingSettings()
        self._newest: KeptByCaller[str, Observation] = KeptByCaller(most)

    def observe(self, observation: Observation) -> None:
        """Advice for the pool of this observation, where it says how many GPUs there are and what one serves."""
        if observation.entry.gpus is None or observation.capacity_per_bucket is None:
            return
        self._newest.put(observation.caller, observation.entry.name, observation)
        name = pool_name(observation)
        members = [
            other
            for other in self._newest.values(observation.caller)
            if pool_name(other) == name and observation.at_s - other.at_s <= STALE_S
        ]
        self._advise(name, members, observation)

    def _advise(self, name: str, members: list[Observation], observation: Observation) -> None:
        pool = _pool(name, members)
        stored = self._table.advice_state(observation.caller, name)
        # This advice is not applied, so no GPUs count as lent: only the hold time carries over.
        state = LendingState() if stored is None else _state(json.loads(stored))
        decision, after = decide(pool, state, observation.at_s, self._settings)
        document = {
            "pool": name,
            "services": sorted(member.entry.name for member in members),
            **decision.to_dict(),
            "curve": [
                {
                    "horizon_s": point.horizon_s,
                    "provision_milli_gpu": point.provision,
                    "lendable_milli_gpu": point.lendable,
                }
                for point in lendable_curve(pool, self._settings)
            ],
            "made_at_s": observation.at_s,
            "fallback": any(member.answer.fallback for member in members),
        }
        kept = json.dumps({"recent": after.recent})
        self._table.put_advice(observation.caller, name, observation.at_s, json.dumps(document), kept)


def pool_name(observation: Observation) -> str:
    """The pool a service draws on: its own, unless it names one."""
    return observation.entry.pool or observation.entry.name


def _pool(name: str, members: list[Observation]) -> Pool:
    """Members may have been asked for different horizons: at each, a member's nearest one at or after it counts."""
    horizons = sorted({horizon.horizon_s for member in members for horizon in member.answer.horizons})
    curve = {float(horizon_s): [_service(member, horizon_s) for member in members] for horizon_s in horizons}
    return Pool(name, sum(member.entry.gpus or 0 for member in members), curve)


def _service(member: Observation, horizon_s: int) -> ServiceDemand:
    later = [h for h in member.answer.horizons if h.horizon_s >= horizon_s]
    demand: Prediction = (later[0] if later else member.answer.horizons[-1]).demand
    quantiles: Mapping[float, float] = {} if demand.refused else demand.quantiles
    assert member.capacity_per_bucket is not None
    return ServiceDemand(
        member.entry.name, member.recent_max, member.capacity_per_bucket, quantiles, member.entry.min_gpus, demand.model
    )


def _state(document: Mapping[str, Any]) -> LendingState:
    recent: Iterable[tuple[float, int]] = ((float(at_s), int(gpus)) for at_s, gpus in document["recent"])
    return LendingState(tuple(recent))
