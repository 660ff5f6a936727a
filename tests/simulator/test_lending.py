"""Lent GPUs and the jobs on them: nobody knows the future, no GPU is used twice, no hour is counted twice."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.data.demand.rolling import GPUS, Forecasts
from kopt.data.demand.table import DemandSeries
from kopt.data.jobs.training import TraceJob
from kopt.simulator.lending.borrowers import Borrowing, borrow
from kopt.simulator.lending.pools import forecast_rule, matched_reactive, pool_of, reactive_rule
from kopt.simulator.preemption.behaviour import STEADY, Habits

STEP_S, DAYS = 300, 8
LENGTH = DAYS * 288
CALM = Habits(1800.0, 30.0, 120.0, STEADY[0], observable=True, delay_s=5.0, draws=tuple(np.linspace(0, 0.99, 64)))


def series(values: np.ndarray) -> DemandSeries:
    return DemandSeries("chat", 0.0, STEP_S, values, "requests")


def demand(seed: int = 0) -> np.ndarray:
    chance = np.random.default_rng(seed)
    day = 2 + np.sin(np.arange(LENGTH) * 2 * np.pi / 288)
    return np.asarray(100 * day * np.exp(0.1 * chance.standard_normal(LENGTH)))


def persisting(values: np.ndarray) -> Forecasts:
    """What was last seen, with the same spread everywhere."""
    spread = np.array([1.0, 1.15, 1.2, 1.35])
    value = values[:, None, None] * np.ones((1, 3, 1)) * spread
    return Forecasts("chat", np.arange(LENGTH), (300, 1800, 3600), (0.5, 0.9, 0.95, 0.99), value)


def jobs(gpus: int, hours: float, count: int) -> list[TraceJob]:
    return [TraceJob(f"j{n}", -1.0, 3600 * hours, gpus) for n in range(count)]


@settings(max_examples=examples(15))
@given(st.integers(0, 5), st.sampled_from([300, 1800, 3600]), st.integers(100, 600))
def test_what_is_kept_depends_on_nothing_later_than_a_lead_time_before(seed: int, lead_s: int, change: int) -> None:
    before = demand(seed)
    after = before.copy()
    first = LENGTH - change
    # The pool's size stays what it was: the same values come in another order.
    after[first:] = after[first:][::-1]
    found = []
    for values in (before, after):
        pool = pool_of(series(values), persisting(values), lead_s)
        assert pool is not None
        found.append((pool.moments, forecast_rule(pool), reactive_rule(pool, 1.2)))
    same = found[0][0] < first + lead_s // STEP_S
    for mine, other in zip(found[0][1:], found[1][1:], strict=True):
        assert (mine[same] == other[same]).all()


def test_the_rule_it_is_compared_with_falls_short_no_more_often_and_lends_what_it_can() -> None:
    pool = pool_of(series(demand()), persisting(demand()), 1800)
    assert pool is not None
    ours = forecast_rule(pool)
    short = float((pool.need > ours).mean())
    assert short <= 0.02
    kept = matched_reactive(pool, short)
    assert float((pool.need > kept).mean()) <= short
    assert kept.sum() < matched_reactive(pool, 0.0).sum()


def test_a_series_that_never_changes_makes_no_pool_and_a_missing_forecast_is_named() -> None:
    assert pool_of(series(np.zeros(LENGTH)), persisting(np.zeros(LENGTH)), 300) is None
    told = persisting(demand())
    cut = Forecasts("chat", told.origins[:-50], told.horizons_s, told.quantiles, told.value[:-50])
    with pytest.raises(ValueError, match="chat: no forecast"):
        pool_of(series(demand()), cut, 300)


def test_jobs_use_all_that_is_lent_to_them_and_nothing_is_lost() -> None:
    kept = np.full(288, GPUS - 8, dtype=np.int64)
    found = borrow(kept, np.arange(288), STEP_S, 1, Borrowing(jobs(4, 48, 9), [CALM] * 9, hold_s=0))
    assert found.used == pytest.approx(8 * 24)
    assert (found.lost, found.started, found.evictions, found.native) == (0.0, 2, 0, 0)


@pytest.mark.parametrize("ours", [True, False])
def test_gpus_are_back_when_the_service_keeps_them(ours: bool) -> None:
    kept = np.full(288, GPUS - 8, dtype=np.int64)
    kept[100:] = GPUS
    borrowing = Borrowing(jobs(4, 48, 9), [CALM] * 9, hold_s=0, ours=ours)
    found = borrow(kept, np.arange(288), STEP_S, 6, borrowing)
    assert found.used <= 8 * 100 * STEP_S / 3600
    assert found.used >= 8 * 94 * STEP_S / 3600 - 8 * 0.5
    assert found.evictions + found.native == 2
    assert bool(found.evictions) == ours
    assert found.torn == 0
    # At most a checkpoint's interval and a write, of eight GPUs.
    assert 0 < found.lost <= 8 * (1800 + 60) / 3600


@settings(max_examples=examples(15))
@given(st.lists(st.integers(0, GPUS), min_size=20, max_size=60), st.integers(0, 3), st.integers(1, 6))
def test_no_more_is_used_than_is_lent_and_no_more_is_lost_than_was_used(steps: list[int], held: int, lead: int) -> None:
    kept = np.repeat(np.array(steps, dtype=np.int64), 3)
    mixed = [TraceJob(f"j{n}", 200.0 * n, 1800.0 * (1 + n % 9), (1, 2, 4, 8)[n % 4]) for n in range(80)]
    borrowing = Borrowing(mixed, [CALM] * 80, hold_s=held * STEP_S)
    found = borrow(kept, np.arange(len(kept)), STEP_S, lead, borrowing)
    assert 0 <= found.used <= (GPUS - kept).sum() * STEP_S / 3600 + 1e-6
    assert 0 <= found.lost <= found.used + 1e-6
    assert found.started <= 80


def test_the_command_compares_rules_by_lead_time(tmp_path: Path) -> None:
    values = demand()
    pd.DataFrame({"series": "chat", "t": np.arange(LENGTH) * STEP_S, "value": values}).to_parquet(
        tmp_path / "d.parquet"
    )
    told = persisting(values)
    frames = [
        pd.DataFrame(
            {"series": "chat", "t": told.origins * STEP_S, "h": horizon_s // 60}
            | {f"q{round(100 * q)}": told.value[:, place, k] for k, q in enumerate(told.quantiles)}
        )
        for place, horizon_s in enumerate(told.horizons_s)
    ]
    pd.concat(frames).to_parquet(tmp_path / "pred.parquet")
    lines = "".join(f"j{n},{600 * n},{3600 * (1 + n % 5)},{(1, 2, 4)[n % 3]}\n" for n in range(2000))
    (tmp_path / "jobs.csv").write_text("job_id,submit_time,duration,gpus\n" + lines)
    command = [
        "simulate",
        "lending",
        "--demand",
        str(tmp_path / "d.parquet"),
        "--forecasts",
        str(tmp_path / "pred.parquet"),
        "--jobs",
        str(tmp_path / "jobs.csv"),
        "--workers",
        "1",
    ]
    done = CliRunner().invoke(app, [*command, "--lead", "5,60", "--plot", str(tmp_path / "lent.svg"), "-o", "json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["schema"] == "kopt/v1"
    assert set(document["leads"]) == {"5", "60"}
    near = document["leads"]["5"]
    assert 0 < near["lent"] < near["share_of_oracle"] < 1
    assert near["violation"] < 0.03
    assert near["gained_gpu_hours"] > near["lost_gpu_hours"] > 0
    assert len(document["rules"]) == 8
    assert "<svg" in (tmp_path / "lent.svg").read_text()
    wrong = CliRunner().invoke(app, [*command, "--lead", "45"])
    assert wrong.exit_code == 1
    assert "no forecasts 45 minutes ahead" in wrong.output
    assert CliRunner().invoke(app, [*command, "--lead", "soon"]).exit_code == 2
