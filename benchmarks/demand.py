"""Demand: zero-shot accuracy, lending, calibration and speed, beside the baselines and in the same run.

Group-wise cross-validation: every service is forecast by a model fitted without any service of its source (of its
model, for ServeGen, totals beside their clients). Out-of-fold forecasts and the baselines' fits are kept under
``KOPT_HOME/bench`` by the digest of code and data, so a second run takes a minute.

    python -m benchmarks.demand [--fresh] [--predictions PRED.parquet]
"""

import argparse
import hashlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import kopt.data.demand.table
import kopt.features.demand
import kopt.models.demand
from benchmarks.demand_baselines import QUANTILES, all_baselines
from kopt.data.demand.files import read_catalogue, read_demand
from kopt.data.demand.rolling import GPUS, SIZING_QUANTILE, Forecasts
from kopt.data.demand.table import GRID_S, DemandSeries
from kopt.features.demand import HORIZONS_S, transform
from kopt.models.demand.calibration import Calibration, between
from kopt.models.demand.global_model import GlobalSettings
from kopt.models.demand.predictor import DemandPredictor
from kopt.models.demand.table import TrainingTable, training_table
from kopt.training.demand.evaluate import Summary, score, scored_origins, summarise

Array = NDArray[np.float64]
SCORED_DAYS, SCORED_KINDS = 6.5, ("llm", "web")
TARGETS = {"mase_ratio": (0.85, 0.72, 0.70), "eff99": (0.77, 0.67, 0.62)}
WORKERS = 2


@dataclass(frozen=True)
class Services:
    """The scored series on their grid and the group of each."""

    series: list[DemandSeries]
    groups: Mapping[str, str]


def read_services(folder: Path) -> Services:
    catalogue = read_catalogue(folder)
    chosen = [
        one.resampled(GRID_S)
        for one in read_demand(folder)
        if catalogue[one.name].days >= SCORED_DAYS and catalogue[one.name].kind in SCORED_KINDS
    ]
    return Services(chosen, {one.name: catalogue[one.name].group for one in chosen})


def out_of_fold(services: Services, cache: Path) -> dict[str, Array]:
    """Quantiles (buckets, H, Q) of every service by a model that saw nothing of its group; NaN on the first day."""
    file = cache / f"folds-{_digest(services)}.npz"
    if not file.exists():
        models = fold_models(services, cache)
        with ProcessPoolExecutor(WORKERS) as pool:
            jobs = [pool.submit(_fold, folder, services, group) for group, folder in models.items()]
            found = {name: values for job in jobs for name, values in job.result().items()}
        np.savez_compressed(file, allow_pickle=False, **found)
    with np.load(file, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def fold_models(services: Services, cache: Path) -> dict[str, Path]:
    """Folders of saved models by the group that each of them has not seen; fitted where they are not there yet."""
    groups = sorted(set(services.groups.values()))
    folders = {group: cache / f"models-{_digest(services)}" / group.replace("/", "+") for group in groups}
    if absent := [group for group in groups if not (folders[group] / "demand.json").exists()]:
        table = training_table(services.series, services.groups)
        with ProcessPoolExecutor(WORKERS) as pool:
            for job in [pool.submit(_fit, table, group, folders[group]) for group in absent]:
                job.result()
    return folders


def _fit(table: TrainingTable, group: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    DemandPredictor(GlobalSettings(threads=1)).fit(table.where(table.groups != group)).save(folder)


def _fold(folder: Path, services: Services, group: str) -> dict[str, Array]:
    return backtests(
        DemandPredictor.load(folder), [one for one in services.series if services.groups[one.name] == group]
    )


def backtests(predictor: DemandPredictor, series: Sequence[DemandSeries]) -> dict[str, Array]:
    """Quantiles (buckets, H, Q) of every series; NaN on the first day."""
    found = {}
    for one, tested in zip(series, predictor.backtests(series, quantiles=QUANTILES), strict=True):
        found[one.name] = np.full((len(one), len(HORIZONS_S), len(QUANTILES)), np.nan)
        found[one.name][tested.origins] = tested.values
    return found


def summaries(services: Services, values: Mapping[str, Array], slices: bool = False) -> tuple[Summary, ...]:
    """Figures over all services, and over every group with ``slices``."""
    scores = []
    for one in services.series:
        origins = scored_origins(one, HORIZONS_S)
        forecasts = Forecasts(one.name, origins, HORIZONS_S, QUANTILES, values[one.name][origins])
        scores += score(one, forecasts, slices=(services.groups[one.name],) if slices else ())
    return summarise(scores)


def comparison(services: Services, ours: Mapping[str, Array], baselines: Mapping[str, Sequence[Array]]) -> str:
    """One line per forecaster and horizon."""
    rows = []
    names = [one.name for one in services.series]
    others = {name: dict(zip(names, values, strict=True)) for name, values in baselines.items()}
    for name, values in {"kopt (zero-shot)": ours, **others}.items():
        for figures in summaries(services, values):
            rows.append((name, *_cells(figures)))
    return _markdown(("forecaster", *_COLUMNS), rows)


def by_group(services: Services, ours: Mapping[str, Array]) -> str:
    rows = [(one.slice, *_cells(one)) for one in summaries(services, ours, slices=True) if one.slice != "all"]
    return _markdown(("group left out", *_COLUMNS), rows)


def against_targets(services: Services, ours: Mapping[str, Array]) -> str:
    rows = []
    for place, one in enumerate(summaries(services, ours)):
        minutes = f"{one.horizon_s // 60} min"
        for label, value, text, held in (
            (
                "MASE ratio to the last value",
                one.mase_ratio,
                f"≤ {TARGETS['mase_ratio'][place]:.2f}",
                one.mase_ratio <= TARGETS["mase_ratio"][place],
            ),
            (
                "share of the oracle's lending",
                one.eff99,
                f"≥ {TARGETS['eff99'][place]:.2f}",
                one.eff99 >= TARGETS["eff99"][place],
            ),
            ("violation of the p99", one.violation_q99, ".005-.015", 0.005 <= one.violation_q99 <= 0.015),
            ("services within 1.5 %", one.calm_share, "≥ .85", one.calm_share >= 0.85),
        ):
            rows.append((label, minutes, f"{value:.4f}", text, "yes" if held else "NO"))
    return _markdown(("figure", "ahead", "measured", "target", "held"), sorted(rows, key=lambda row: row[0]))


_COLUMNS = ("ahead", "MASE", "MASE ratio", "eff99 of q95", "q95 violation", "q99 violation", "services ≤ 1.5 %")


def _cells(one: Summary) -> tuple[str, ...]:
    figures = (one.mase, one.mase_ratio, one.eff99, one.violation_q95, one.violation_q99, one.calm_share)
    return (f"{one.horizon_s // 60} min", *(f"{figure:.4f}" for figure in figures))


def pooled(services: Services, ours: Mapping[str, Array]) -> str:
    """Services of one step as one pool: their medians and spreads summed, calibrated on the pool's own errors.

    Each service brings 64 GPUs sized for its 99.9 % quantile, so that none dominates; totals would count clients twice.
    """
    rows = []
    for step_s in sorted({one.step_s for one in services.series}):
        members = [one for one in services.series if one.step_s == step_s and not one.name.endswith("_total")]
        buckets = min(len(one) for one in members)
        unit = [np.nanquantile(one.value, SIZING_QUANTILE) / GPUS for one in members]
        demand = np.sum([one.value[-buckets:] / u for one, u in zip(members, unit, strict=True)], axis=0)
        parts = np.sum([ours[one.name][-buckets:] / u for one, u in zip(members, unit, strict=True)], axis=0)
        pool = DemandSeries("pool", 0.0, step_s, demand)
        quantiles = _pool_quantiles(pool, parts)
        first = scored_origins(pool, HORIZONS_S)[0]
        for column, horizon in enumerate(HORIZONS_S):
            ahead = max(1, horizon // step_s)
            origins = np.arange(first, buckets - ahead)
            origins = origins[np.isfinite(demand[origins + ahead]) & np.isfinite(quantiles[origins, column])]
            short, lent, share = _pool_lending(demand, quantiles[:, column], origins, ahead, len(members))
            rows.append(
                (
                    f"{len(members)} services of {step_s // 60} min",
                    f"{horizon // 60} min",
                    f"{short:.4f}",
                    f"{lent:.3f}",
                    f"{share:.3f}",
                )
            )
    return _markdown(("pool", "ahead", "q99 violation", "lent", "share of the oracle's"), rows)


def _pool_quantiles(pool: DemandSeries, parts: Array) -> Array:
    """The pool's 99 % quantile (buckets, H) from summed medians and spreads."""
    centre, width = parts[..., 0], np.maximum(parts[..., QUANTILES.index(0.95)] - parts[..., 0], 1e-9)
    start = np.array([[-0.35, 0.0, 0.3, 0.45, 0.9]] * len(HORIZONS_S))
    calibration, result = Calibration.new(start, pool.step_s), np.full(centre.shape, np.nan)
    ahead = np.array([max(1, h // pool.step_s) for h in HORIZONS_S])
    lane = np.arange(len(ahead))
    for now, value in enumerate(pool.value):
        scores = np.full(len(ahead), np.nan)
        if now >= ahead.max():
            scores = (value - centre[now - ahead, lane]) / width[now - ahead, lane]
        thresholds = between(calibration.observe(scores[None])[0], [0.99])[:, 0]
        result[now] = centre[now] + thresholds * width[now]
    return result


def _pool_lending(
    demand: Array, q99: Array, origins: NDArray[np.int64], ahead: int, members: int
) -> tuple[float, float, float]:
    """Violation, lent share of all GPUs and of what an oracle lends; demand in GPUs, each service having brought 64."""
    total = GPUS * members
    need = np.minimum(np.ceil(demand[origins + ahead]), total)
    gpus = np.clip(np.ceil(q99[origins] - 1e-9), 1, total)
    lent = (total - gpus).sum()
    return float((need > gpus).mean()), float(lent / total / len(need)), float(lent / (total - need).sum())


def speed(services: Services) -> str:
    """Training on everything, and answering, on one core where nothing else is said."""
    began, cpu = time.perf_counter(), time.process_time()
    table = training_table(services.series, services.groups)
    predictor = DemandPredictor().fit(table)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    rows = [("train on all series (2 threads)", f"{wall:.0f} s wall, {cpu:.0f} s CPU", "≤ 600 s on 2 cores")]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    rows.append(("peak memory of training", f"{peak:.2f} GiB", "≤ 6 GiB"))
    series = max(services.series, key=len).tail(14 * 288)
    began = time.process_time()
    for _ in range(20):
        transform(series, np.array([len(series) - 1]))
    rows.append(("one feature row, 14 days of history", f"{(time.process_time() - began) / 20 * 1e3:.2f} ms", "1-2 ms"))
    features = table.features[np.linspace(0, len(table) - 1, 20_000).astype(int)]
    began = time.process_time()
    predictor.predict_rows(features)
    rate = len(features) * len(HORIZONS_S) / (time.process_time() - began)
    rows.append(("predict_rows", f"{rate:,.0f} series-horizons/s", "≥ 2,000/s per core"))
    began = time.process_time()
    tested = predictor.backtest(series)
    rate = len(tested.origins) * len(HORIZONS_S) / (time.process_time() - began)
    rows.append(("backtest: features, model and online state", f"{rate:,.0f} series-horizons/s", "≥ 2,000/s per core"))
    with tempfile.TemporaryDirectory() as folder:
        predictor.save(Path(folder))
        size = sum(file.stat().st_size for file in Path(folder).iterdir()) / 2**20
    rows.append(("size of the saved model", f"{size:.2f} MiB", "≤ 3 MiB"))
    return _markdown(("", "measured", "target"), rows)


def write_predictions(services: Services, values: Mapping[str, Array], path: Path) -> None:
    """The file that ``kopt demand backtest`` writes: one row per series, origin and horizon."""
    import pandas as pd

    parts = []
    for one in services.series:
        origins = scored_origins(one, HORIZONS_S)
        for column, horizon in enumerate(HORIZONS_S):
            quantiles = {f"q{round(q * 100)}": values[one.name][origins, column, i] for i, q in enumerate(QUANTILES)}
            times = origins * one.step_s
            parts.append(pd.DataFrame({"series": one.name, "t": times, "h": horizon // 60, **quantiles}))
    pd.concat(parts).to_parquet(path, index=False)


def external_score(services: Services, values: Mapping[str, Array], data: Path, kept: Path | None) -> str:
    """What the scoring script beside the data says, where there is one."""
    script = data.parent / "tools" / "score_demand.py"
    with tempfile.TemporaryDirectory() as folder:
        path = kept or Path(folder) / "predictions.parquet"
        write_predictions(services, values, path)
        if not script.exists():
            return "(no scoring script beside the data)"
        command = [sys.executable, str(script), str(path), "--data", str(data / "demand")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return done.stdout + done.stderr


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _digest(services: Services) -> str:
    found = hashlib.sha256()
    for module in (kopt.models.demand, kopt.features.demand, kopt.data.demand.table):
        path = Path(str(module.__file__))
        for file in sorted(path.parent.glob("*.py")) if path.name == "__init__.py" else [path]:
            found.update(file.read_bytes())
    for one in services.series:
        found.update(f"{one.name} {one.step_s} {services.groups[one.name]}".encode() + one.value.tobytes())
    return found.hexdigest()[:24]


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fresh", action="store_true", help="forget cached folds and fits")
    parser.add_argument("--predictions", type=Path, help="keep the out-of-fold forecasts as Parquet")
    options = parser.parse_args(arguments)
    data = Path(os.environ.get("KOPT_DATA_DIR", ""))
    if not (data / "demand" / "demand.parquet").exists():
        print("KOPT_DATA_DIR names no folder with demand/demand.parquet: nothing measured")
        return int(os.environ.get("KOPT_REQUIRE_DATA") == "1")
    services = read_services(data / "demand")
    cache = Path(os.environ.get("KOPT_HOME", ".kopt")) / "bench"
    for file in cache.glob("*.np?") if options.fresh else ():
        file.unlink()
    for folder in cache.glob("models-*") if options.fresh else ():
        shutil.rmtree(folder)
    ours = out_of_fold(services, cache)
    for title, text in (
        ("Targets, zero-shot", against_targets(services, ours)),
        ("By group", by_group(services, ours)),
        ("Beside the baselines", comparison(services, ours, all_baselines(services.series, cache, WORKERS))),
        ("Pooled lending at the p99", pooled(services, ours)),
        ("Cost", speed(services)),
        ("The scoring script", f"```\n{external_score(services, ours, data, options.predictions)}\n```"),
    ):
        print(f"\n### {title}\n\n{text}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
