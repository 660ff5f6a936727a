"""Where training data comes from: files, a Prometheus server, or the generator of synthetic services."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kopt.data.demand.catalogue import SeriesInfo, read_catalogue
from kopt.data.demand.generator import generate
from kopt.data.demand.load import load
from kopt.data.demand.table import GRID_S, DemandDataError, DemandSeries

GENERATOR = "generator"
"""The source that SERIES.csv names for made-up services."""
GENERATED = "generated"
MINIMUM_DAYS = 2.0
"""Shorter series have no day of history with a day to be tested on."""


@dataclass(frozen=True)
class DemandDataset:
    """Series on the five-minute grid (coarser ones as they are), what is known about each, and a digest of it all.

    ``excluded`` says for every series that cannot be learned from why.
    """

    name: str
    series: tuple[DemandSeries, ...]
    info: Mapping[str, SeriesInfo] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """sha256 over names, times, units and values of the series."""
        result = hashlib.sha256()
        for demand_series in sorted(self.series, key=lambda demand_series: demand_series.name):
            head = (demand_series.name, demand_series.start_s, demand_series.step_s, demand_series.unit)
            result.update("".join(f"{part}\0" for part in (*head, self.group(demand_series.name))).encode())
            result.update(np.ascontiguousarray(demand_series.value, dtype="<f8").tobytes())
        return result.hexdigest()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(demand_series.name for demand_series in self.series)

    @property
    def is_example(self) -> bool:
        """Whether every series comes from the generator."""
        sources = {self.info[name].source if name in self.info else "" for name in self.names}
        return self.name == GENERATED or sources == {GENERATOR}

    def size(self, name: str) -> int:
        """Buckets of a series."""
        return next(len(demand_series) for demand_series in self.series if demand_series.name == name)

    def group(self, name: str) -> str:
        """What a series is left out together with when unseen services are imitated."""
        return self.info[name].group if name in self.info else name

    def slices(self, name: str) -> tuple[str, ...]:
        """Labels that evaluation groups the series by."""
        info = self.info.get(name)
        step = next(demand_series.step_s for demand_series in self.series if demand_series.name == name)
        labels = [f"group {self.group(name)}"] if info is not None and info.source else []
        labels += [f"kind {info.kind}"] if info is not None and info.kind else []
        return (*labels, f"step {step // 60} min")


@dataclass(frozen=True)
class FileSource:
    """A folder or file that ``kopt.data.demand`` can read."""

    path: Path

    def read(self) -> DemandDataset:
        return dataset(self.path.name, load(self.path), read_catalogue(self.path))


@dataclass(frozen=True)
class PrometheusSource:
    """Range queries against a Prometheus server; ``query`` gives one series per value of ``label``."""

    url: str
    query: str
    since_s: float
    step_s: int = GRID_S
    label: str = "service"

    def read(self) -> DemandDataset:
        from kopt.data.demand.prometheus import read_demand

        demand_series = read_demand(self.url, self.query, self.since_s, self.step_s, label=self.label)
        return dataset("prometheus", demand_series)


@dataclass(frozen=True)
class GeneratedSource:
    """Synthetic services, for the embedded default and for tests."""

    services: int = 12
    days: float = 14.0
    seed: int = 0

    def read(self) -> DemandDataset:
        return dataset(GENERATED, generate(self.services, self.days, seed=self.seed))


def dataset(name: str, series: Sequence[DemandSeries], info: Mapping[str, SeriesInfo] | None = None) -> DemandDataset:
    """Series that can be learned from, on the grid, without their tenants' tables.

    Raises DemandDataError when none is long and lively enough, saying why of each.
    """
    kept, excluded = [], {}
    for demand_series in series:
        reason = _unusable(demand_series)
        if reason:
            excluded[demand_series.name] = reason
        else:
            kept.append(demand_series.resampled(GRID_S))
    if not kept:
        reasons = "; ".join(f"{key}: {value}" for key, value in list(excluded.items())[:5])
        raise DemandDataError(f"no series can be learned from ({reasons or 'there is none'})")
    doubled = {
        demand_series.name for demand_series in kept if sum(other.name == demand_series.name for other in kept) > 1
    }
    if doubled:
        raise DemandDataError("two series have this name", series=min(doubled))
    return DemandDataset(name, tuple(kept), dict(info or {}), excluded)


def _unusable(series: DemandSeries) -> str:
    if series.days < MINIMUM_DAYS:
        return f"{series.days:.1f} days long, at least {MINIMUM_DAYS:g} are needed"
    observed = series.value[np.isfinite(series.value)]
    if len(observed) < 0.2 * len(series):
        return f"only {len(observed)} of {len(series)} buckets are known"
    if len(np.unique(observed)) < 3:
        return "its demand never changes"
    return ""
