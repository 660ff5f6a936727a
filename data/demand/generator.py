"""Synthetic inference services for the embedded default, demonstrations and tests.

Each service is the sum of its tenants. A tenant has its own share, time zone, working-day shape and burstiness, and
may join or leave; a service may be launched inside the window, and has outages that are gaps in collection or real
drops. Counts are negative binomial: bursty beyond Poisson, as measured per client of production LLM services
(ServeGen, arXiv:2505.09999).
"""

import itertools
from dataclasses import dataclass

import numpy as np

from kopt.data.demand.files import write_demand
from kopt.data.demand.table import Array, DemandDataError, DemandSeries

__all__ = ["generate", "write_demand"]

MONDAY_S = 1_736_121_600.0
"""2025-01-06T00:00:00Z: generated services start on a Monday."""
DAY_S = 86_400
_SERVICE_NAMES = (
    "chat",
    "search",
    "code",
    "vision",
    "speech",
    "embed",
    "translate",
    "agent",
    "image",
    "rank",
    "draft",
    "tutor",
)


@dataclass(frozen=True)
class _Clock:
    """The buckets: their number and their times in days since the start, shape (n,)."""

    step_s: int
    days: Array

    def buckets(self, hours: float) -> int:
        return max(1, round(hours * 3600 / self.step_s))


def generate(services: int = 12, days: float = 14, step_s: int = 300, seed: int = 0) -> list[DemandSeries]:
    """``services`` series of ``days`` days; service *i* is the same whatever the number of services.

    Requests per bucket, with input and output tokens and per-tenant demand that sums to the total. Medians range
    over four orders of magnitude. Raises DemandDataError for sizes that make no series.
    """
    count = int(days * DAY_S / step_s) if step_s > 0 else 0
    if services < 1 or count < 1:
        raise DemandDataError(f"{services} services of {days:g} days in steps of {step_s} s are no data")
    clock = _Clock(step_s, np.arange(count, dtype=np.float64) * (step_s / DAY_S))
    return [
        _service(f"{_SERVICE_NAMES[i % len(_SERVICE_NAMES)]}-{i:02d}", clock, np.random.default_rng([seed, i]))
        for i in range(services)
    ]


def _service(name: str, clock: _Clock, rng: np.random.Generator) -> DemandSeries:
    level = 10 ** rng.uniform(0.7, 4.7) * clock.step_s / 300
    shares = rng.dirichlet(np.full(int(rng.integers(3, 9)), 0.7))
    shared = _launch(clock, rng) * np.exp(_walk(clock, 0.15, 24, rng))
    drops, gaps = _outages(clock, rng)
    tenants = {f"client{k}": _tenant(level * share, clock, rng, shared * drops) for k, share in enumerate(shares, 1)}
    mix = np.array([rng.lognormal(6.5, 0.8, len(tenants)), rng.lognormal(5.3, 0.6, len(tenants))])
    for counts in tenants.values():
        counts[gaps] = np.nan
    by_tenant = np.array(list(tenants.values()))
    noise = rng.lognormal(0, 0.05, (2, len(clock.days)))
    in_tokens, out_tokens = np.round(mix @ by_tenant * noise)
    return DemandSeries(
        name,
        MONDAY_S,
        clock.step_s,
        by_tenant.sum(0),
        start_known=True,
        in_tokens=in_tokens,
        out_tokens=out_tokens,
        tenants=tenants,
    )


def _tenant(level: float, clock: _Clock, rng: np.random.Generator, shared: Array) -> Array:
    """Requests of one tenant per bucket, shape (n,)."""
    mean = level * shared * _week(clock, rng) * np.exp(_walk(clock, rng.uniform(0.05, 0.3), 3, rng))
    mean *= _presence(clock, rng) * (1 + _bursts(clock, rng))
    shape = 10 ** rng.uniform(0.5, 2.5)
    rate = mean * rng.gamma(shape, 1 / shape, len(mean))
    return rng.poisson(rate).astype(np.float64)


def _week(clock: _Clock, rng: np.random.Generator) -> Array:
    """Working days with a peak around a local hour, quieter at weekends; mean about 1, shape (n,)."""
    peak, width = rng.normal(14 / 24, 0.15), rng.uniform(0.3, 2.5)
    daily = np.exp(width * (np.cos(2 * np.pi * (clock.days - peak)) - 1))
    night = rng.uniform(0.05, 0.6)
    weekend = np.where(np.floor(clock.days) % 7 >= 5, rng.uniform(0.2, 1.1), 1.0)
    shape: Array = (night + (1 - night) * daily) * weekend
    normal: Array = shape / shape.mean()
    return normal


def _walk(clock: _Clock, deviation: float, hours: float, rng: np.random.Generator) -> Array:
    """A slow mean-reverting walk (AR(1)) of the given standard deviation and correlation time, shape (n,)."""
    keep = np.exp(-1 / clock.buckets(hours))
    steps = rng.normal(0, deviation * np.sqrt(1 - keep**2), len(clock.days))
    steps[0] = rng.normal(0, deviation)
    return np.fromiter(itertools.accumulate(steps, lambda last, step: keep * last + step), np.float64, len(steps))


def _launch(clock: _Clock, rng: np.random.Generator) -> Array:
    """1, or for one service in four zero until a launch and then a ramp of hours to days, shape (n,)."""
    if rng.random() >= 0.25:
        return np.ones(len(clock.days))
    begin, ramp = rng.uniform(0.1, 0.6) * clock.days[-1], rng.uniform(0.2, 2)
    return np.where(clock.days < begin, 0.0, 1 - np.exp(-(clock.days - begin).clip(0) / ramp))


def _presence(clock: _Clock, rng: np.random.Generator) -> Array:
    """Whether a tenant is there: half stay, the others join or leave, shape (n,)."""
    turning_day = rng.uniform(0.05, 0.95) * clock.days[-1]
    kind = rng.random()
    if kind < 0.5:
        return np.ones(len(clock.days))
    joined = (clock.days >= turning_day).astype(np.float64)
    present: Array = joined if kind < 0.75 else 1 - joined
    return present


def _bursts(clock: _Clock, rng: np.random.Generator) -> Array:
    """Added demand as a multiple of the normal: sudden, then fading within the hour, shape (n,)."""
    added = np.zeros(len(clock.days))
    for _ in range(rng.poisson(0.25 * (clock.days[-1] + 1))):
        begin, height = int(rng.integers(len(added))), rng.pareto(2.5) + 0.5
        fade = clock.buckets(rng.uniform(0.1, 1))
        added[begin:] += min(height, 8.0) * np.exp(-np.arange(len(added) - begin) / fade)
    return added


def _outages(clock: _Clock, rng: np.random.Generator) -> tuple[Array, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Factor on demand with real drops, and where collection failed; each of shape (n,)."""
    factor, gaps = np.ones(len(clock.days)), np.zeros(len(clock.days), bool)
    for _ in range(rng.poisson(clock.days[-1] / 7)):
        begin, length = int(rng.integers(len(gaps))), clock.buckets(rng.uniform(0.2, 3))
        if rng.random() < 0.5:
            gaps[begin : begin + length] = True
        else:
            factor[begin : begin + length] = rng.uniform(0, 0.1)
    # The first bucket is there, so that a series never begins (or consists) of gaps only.
    gaps[0] = False
    return factor, gaps
