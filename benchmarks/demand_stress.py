"""Demand on services unlike those that the model was made with: is the p99 still kept, and what does that cost?

Two kinds. Every service of the data, forecast by a model that saw nothing of its source, with its last two weeks made
harder by several seeds: a level shift, another daily rhythm, restlessness that begins one day, bursts, sparse counts,
half-hour buckets, a history of two or three days. And, where ``KOPT_OTHER_DEMAND`` names a folder in the format of the
demand data, every series in it by the shipped model, in two halves by the hash of its source and name: nothing may be
chosen on the second.

    python -m benchmarks demand-stress
"""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.demand import QUANTILES, WORKERS, Services, backtests, fold_models, read_services
from benchmarks.tables import markdown
from kopt.data.demand.files import read_catalogue, read_demand
from kopt.data.demand.rolling import GPUS, SIZING_QUANTILE, Forecasts
from kopt.data.demand.table import GRID_S, DemandSeries
from kopt.features.demand import DAY_S, HORIZONS_S, steps_ahead
from kopt.models.demand.predictor import DemandPredictor
from kopt.models.registry.shipped import verified_shipped
from kopt.training.demand.evaluate import score, scored_origins

Array = NDArray[np.float64]
Random = np.random.Generator
Change = Callable[[Array, int, Random], tuple[Array, int]]
"""Values and step in seconds → changed values and their step."""

SEEDS = (0, 1, 2)
"""The constants were chosen on other draws of these changes, without the half hours."""
STRESSED_DAYS = 14
CALM = 0.015
_COLUMNS = (
    "services",
    "ahead",
    "number",
    "within 1.5 %",
    "worst seed",
    "p99 violation",
    "lent at the p99",
    "eff99 of q95",
)


def level_shift(value: Array, step_s: int, random: Random) -> tuple[Array, int]:
    """Two to four times as much, or a half to a quarter, from one day on."""
    changed, day = value.copy(), _day(value, random)
    changed[day:] *= random.choice([1 / 4, 1 / 3, 1 / 2, 2, 3, 4])
    return changed, step_s


def other_rhythm(value: Array, step_s: int, random: Random) -> tuple[Array, int]:
    """From one day on everything comes six to eighteen hours later."""
    changed, day = value.copy(), _day(value, random)
    late = int(random.uniform(0.25, 0.75) * DAY_S / step_s)
    changed[day:] = value[day - late : len(value) - late]
    return changed, step_s


def restless(value: Array, step_s: int, random: Random) -> tuple[Array, int]:
    """From one day on twice as far from the mean of the last three hours, in logarithms."""
    import pandas as pd

    day = _day(value, random)
    logs = pd.Series(np.log(np.maximum(value, 1e-3 * np.nanmean(value))))
    smooth = logs.rolling(max(3, 10_800 // step_s), min_periods=1).mean().to_numpy()
    changed = logs.to_numpy().copy()
    changed[day:] = smooth[day:] + 2 * (changed[day:] - smooth[day:])
    return np.exp(changed), step_s


def bursts(value: Array, step_s: int, random: Random) -> tuple[Array, int]:
    """About every 17 hours ten to ninety minutes of up to one and a half times the busy hours' demand on top."""
    changed, high, at = value.copy(), np.nanquantile(value, 0.9), 0
    while (at := at + int(random.exponential(0.7 * DAY_S / step_s)) + 1) < len(value):
        length = min(max(1, int(random.uniform(600, 5400) / step_s)), len(value) - at)
        changed[at : at + length] += high * random.uniform(0.3, 1.5) * np.linspace(1, 0.4, length)
    return changed, step_s


def sparse_counts(value: Array, step_s: int, random: Random) -> tuple[Array, int]:
    """Thinned to Poisson counts with a mean of .5 to 20 a bucket."""
    mean = np.exp(random.uniform(np.log(0.5), np.log(20)))
    rate = np.maximum(value * mean / np.nanmean(value), 0)
    return np.where(np.isfinite(value), random.poisson(np.nan_to_num(rate)), np.nan), step_s


def half_hours(value: Array, step_s: int, random: Random) -> tuple[Array, int]:
    """Sums of half an hour, from a random place in the first."""
    together = 1800 // step_s
    whole = value[random.integers(together) :]
    return whole[: len(whole) // together * together].reshape(-1, together).sum(1), 1800


def short_history(value: Array, step_s: int, random: Random) -> tuple[Array, int]:
    """Nothing but 1.6 to 3.5 days in a row."""
    length = min(len(value), int(random.uniform(1.6, 3.5) * DAY_S / step_s))
    end = int(random.integers(length, len(value) + 1))
    return value[end - length : end], step_s


CHANGES: Mapping[str, Change] = {
    "level shift": level_shift,
    "other rhythm": other_rhythm,
    "restless": restless,
    "bursts": bursts,
    "sparse counts": sparse_counts,
    "half hours": half_hours,
    "short history": short_history,
}


def _day(value: Array, random: Random) -> int:
    """A bucket between the 30th and the 90th percent of a series, at which something changes."""
    return int(random.integers(int(0.3 * len(value)), int(0.9 * len(value))))


def changed(one: DemandSeries, kind: str, seed: int) -> DemandSeries:
    """The last two weeks of a service, made harder; the same for the same seed."""
    digest = hashlib.sha256(f"{kind}/{seed}/{one.name}".encode()).digest()
    random = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    value, step_s = CHANGES[kind](one.value[-STRESSED_DAYS * DAY_S // one.step_s :], one.step_s, random)
    return DemandSeries(one.name, 0.0, step_s, value)


def figures(series: Iterable[DemandSeries], predictor: DemandPredictor) -> list[Array]:
    """p99 violation, share of the oracle's lending at the p99, and eff99 of q95 by horizon, (3, H) of every series."""
    scorable = [one for one in series if np.nanquantile(one.value, SIZING_QUANTILE) > 0]
    rows = []
    for one, values in zip(scorable, backtests(predictor, scorable).values(), strict=True):
        origins = scored_origins(one, HORIZONS_S)
        scores = score(one, Forecasts(one.name, origins, HORIZONS_S, QUANTILES, values[origins]))
        if len(scores) == len(HORIZONS_S):
            lent = [lending(one, values[..., -1], column) for column in range(len(HORIZONS_S))]
            rows.append(np.array([[each.violation(0.99) for each in scores], lent, [each.eff99() for each in scores]]))
    return rows


def lending(one: DemandSeries, q99: Array, column: int) -> float:
    """GPUs lent when provisioning at ``q99`` (buckets, H), as a share of what an oracle lends."""
    ahead = steps_ahead(HORIZONS_S[column], one.step_s)
    first = scored_origins(one, HORIZONS_S)[0] + steps_ahead(HORIZONS_S[-1], one.step_s) - ahead
    origins = np.arange(first, len(one) - ahead)
    origins = origins[np.isfinite(one.value[origins]) & np.isfinite(one.value[origins + ahead])]
    per_gpu = np.nanquantile(one.value, SIZING_QUANTILE) / GPUS
    need = np.minimum(np.ceil(one.value[origins + ahead] / per_gpu), GPUS)
    provided = np.clip(np.ceil(q99[origins, column] / per_gpu - 1e-9), 1, GPUS)
    return float((GPUS - provided).sum() / max((GPUS - need).sum(), 1.0))


def _by_kind(folder: Path, services: Services, group: str) -> dict[tuple[str, int], list[Array]]:
    predictor = DemandPredictor.load(folder)
    mine = [one for one in services.series if services.groups[one.name] == group]
    return {
        (kind, seed): figures([changed(one, kind, seed) for one in mine], predictor)
        for kind in CHANGES
        for seed in SEEDS
    }


def stressed(services: Services, cache: Path) -> list[tuple[str, ...]]:
    """Rows of the table, one for every change and horizon: means over all seeds, and the worst seed's share."""
    models = fold_models(services, cache)
    with ProcessPoolExecutor(WORKERS) as pool:
        jobs = [pool.submit(_by_kind, folder, services, group) for group, folder in models.items()]
        parts = [job.result() for job in jobs]
    by_kind = {
        kind: [np.array([row for part in parts for row in part[kind, seed]]) for seed in SEEDS] for kind in CHANGES
    }
    return [row for kind, by_seed in by_kind.items() for row in _rows(kind, by_seed)]


def others(folder: Path) -> list[tuple[str, ...]]:
    """The same figures for the series of another folder by the shipped model."""
    predictor = DemandPredictor.load(verified_shipped("demand"))
    sources = {name: about.source for name, about in read_catalogue(folder).items()}
    halves: dict[bool, list[DemandSeries]] = {False: [], True: []}
    for one in read_demand(folder):
        digest = hashlib.sha256(f"{sources[one.name]}/{one.name}".encode()).digest()
        halves[digest[-1] % 2 == 1].append(one.resampled(GRID_S))
    names = {False: "others, tuned on", True: "others, set apart"}
    return [row for odd, half in halves.items() for row in _rows(names[odd], [np.array(figures(half, predictor))])]


def _rows(name: str, by_seed: Sequence[Array]) -> list[tuple[str, ...]]:
    together = np.concatenate(by_seed)
    rows = []
    for column, horizon_s in enumerate(HORIZONS_S):
        violation, lent, eff99 = together[:, :, column].T
        worst = min(float((one[:, 0, column] <= CALM).mean()) for one in by_seed)
        shares = (float((violation <= CALM).mean()), worst)
        cells = (*(f"{share:.3f}" for share in shares), f"{violation.mean():.4f}", f"{lent.mean():.3f}")
        rows.append((name, f"{horizon_s // 60} min", str(len(together)), *cells, f"{eff99.mean():.3f}"))
    return rows


def main(_arguments: Sequence[str] = ()) -> int:
    data, other = Path(os.environ.get("KOPT_DATA_DIR", "")), os.environ.get("KOPT_OTHER_DEMAND")
    if not (data / "demand" / "demand.parquet").exists():
        print("KOPT_DATA_DIR names no folder with demand/demand.parquet: nothing measured")
        return int(os.environ.get("KOPT_REQUIRE_DATA") == "1")
    cache = Path(os.environ.get("KOPT_HOME", ".kopt")) / "bench"
    rows = stressed(read_services(data / "demand"), cache)
    print(markdown(_COLUMNS, rows + (others(Path(other)) if other else [])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
