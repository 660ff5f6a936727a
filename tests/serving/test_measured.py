"""Predicted against measured: intervals that miss are noticed, widened for who measured them, and shown; a challenger
is compared on the same measurements. Through the application, with the shipped models."""

import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.hardware.bandwidth import Collective
from kopt.core.settings import Settings
from kopt.core.units import GIB
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.models.registry.registry import CHALLENGER, CHAMPION
from kopt.models.sizing.estimate import load_sizing
from kopt.serving.bandwidth.service import BandwidthService
from kopt.serving.contract.common import DEADLINE_HEADER
from kopt.serving.contract.model_answers import IntervalHealthOut, parse_predictors_health
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.measured.comparisons import HOLDS
from kopt.serving.measured.health import LEAST, MOST_WIDENING, Comparison, evaluate, widening
from kopt.serving.measured.table import ComparisonTable
from kopt.serving.sizing.service import SizingService
from tests.serving.conftest import URL, MemorySource, StandInModel, no_store
from tests.serving.test_bandwidth_pairs import NODE, names, pair

SCALES = (1024, 1536, 2048, 2560, 3072)
STEADY = {
    "schema": "kopt/v1",
    "gpu": "H100-SXM5-80GB",
    "duration_s": 300.0,
    "samples": 300,
    "steady": True,
    "steps": 400,
}


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    sizing, bandwidth = load_sizing("shipped"), load_bandwidth("shipped")
    return {"demand": StandInModel, "sizing": lambda: sizing, "bandwidth": lambda: bandwidth}


@pytest.fixture
def endpoint(tmp_path: Path, shipped: dict[str, Any]) -> Iterator[Endpoint]:
    built = assemble(
        Settings(home=tmp_path), Parts(MemorySource(), StoredFeatures(no_store), refresh_s=3600, shipped=shipped)
    )
    built.start()
    for kind in (SizingService, BandwidthService):
        built.service(kind).refresh()
    yield built
    built.stop()


@pytest.fixture
async def http(endpoint: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=URL, headers={DEADLINE_HEADER: "30000"}) as client:
        yield client


def training(number: int) -> str:
    """One of many job types."""
    hidden = SCALES[number % len(SCALES)]
    return (
        f"torchrun --nproc-per-node 1 pretrain_gpt.py --num-layers {12 + number // len(SCALES)} --hidden-size {hidden} "
        f"--num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 2 "
        f"--global-batch-size 2 --bf16"
    )


async def memory_of(http: httpx.AsyncClient, number: int, **more: Any) -> dict[str, Any]:
    body = {"workload": training(number), "profile": None, "gpu": "h100", **more}
    reply = await http.post("/v1/sizing", json=body)
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document


async def measure(http: httpx.AsyncClient, numbers: range, times: float) -> None:
    """Dry runs of these jobs used ``times`` what was predicted of them."""
    for number in numbers:
        peak = (await memory_of(http, number))["memory"]["peak_bytes"]
        await memory_of(http, number, profile={**STEADY, "peak_bytes": round(times * peak)})


async def health_of(http: httpx.AsyncClient, predictor: str) -> dict[str, IntervalHealthOut]:
    """The newest version of each role."""
    reply = await http.get("/v1/health/predictors")
    assert reply.status_code == 200, reply.text
    entries = parse_predictors_health(reply.json()).predictors
    return {entry.role: entry for entry in reversed(entries) if entry.predictor == predictor}


async def test_dry_runs_are_compared_with_what_the_code_alone_had_said(
    http: httpx.AsyncClient, endpoint: Endpoint
) -> None:
    before = (await memory_of(http, 0))["memory"]
    await measure(http, range(3), 1.0)
    endpoint.service(SizingService).refresh()
    health = (await health_of(http, "sizing"))[CHAMPION]
    assert (health.compared, health.coverage, health.alarm, health.widened_for) == (3, 1.0, False, 0)
    assert health.error is not None
    assert health.error < 1e-6
    (first,) = [each for each in health.newest if each.value == before["peak_bytes"]]
    assert (first.low, first.high, first.measured) == (before["low_bytes"], before["high_bytes"], before["peak_bytes"])


async def test_one_that_was_not_steady_yet_is_no_measurement(http: httpx.AsyncClient, endpoint: Endpoint) -> None:
    await memory_of(http, 0, profile={**STEADY, "steady": False, "peak_bytes": 40 * GIB})
    endpoint.service(SizingService).refresh()
    assert await health_of(http, "sizing") == {}


async def test_intervals_that_miss_are_widened_until_they_hold_again(
    http: httpx.AsyncClient, endpoint: Endpoint
) -> None:
    untouched = (await memory_of(http, 90))["memory"]
    await measure(http, range(LEAST), 2.0)
    assert (await memory_of(http, 90))["memory"] == untouched, "replicas agree at the next refresh, not before"
    endpoint.service(SizingService).refresh()
    health = (await health_of(http, "sizing"))[CHAMPION]
    assert (health.alarm, health.widened_for, health.coverage) == (True, 1, 0.0)
    assert health.bias == pytest.approx(1.0, abs=1e-6)
    answer = await memory_of(http, 90)
    assert answer["memory"]["high_bytes"] > 1.99 * untouched["peak_bytes"], "it would have held the others"
    assert "INTERVALS_WIDENED" in {reason["code"] for reason in answer["reasons"]}
    assert answer["memory"]["peak_bytes"] == untouched["peak_bytes"]
    service = endpoint.service(SizingService)
    assert service.slot.version is not None
    assert service.compared is not None
    assert service.compared.widening("", service.slot.version).factor > 1.4
    assert service.compared.widening("somebody else", service.slot.version) == HOLDS

    await measure(http, range(100, 100 + LEAST), 1.0)
    endpoint.service(SizingService).refresh()
    assert not (await health_of(http, "sizing"))[CHAMPION].alarm
    assert (await memory_of(http, 90))["memory"] == untouched


async def test_a_dry_run_of_the_job_itself_is_not_widened(http: httpx.AsyncClient, endpoint: Endpoint) -> None:
    await measure(http, range(LEAST), 2.0)
    endpoint.service(SizingService).refresh()
    own = {**STEADY, "peak_bytes": (await memory_of(http, 90))["memory"]["peak_bytes"]}
    answer = await memory_of(http, 90, profile=own)
    assert "INTERVALS_WIDENED" not in {reason["code"] for reason in answer["reasons"]}


async def test_measured_pairs_are_compared_before_they_calibrate(
    http: httpx.AsyncClient, endpoint: Endpoint, shipped: dict[str, Any]
) -> None:
    nodes = names(LEAST + 1)
    pairs = [pair(shipped["bandwidth"](), nodes[0], other, times=4.0).to_dict() for other in nodes[1:]]
    topologies = {name: {key: value for key, value in NODE.to_dict().items() if key != "node"} for name in nodes}
    body = {"cluster": "north", "topologies": topologies, "pairs": pairs[:-1]}
    assert (await http.post("/v1/bandwidth/pairs", json=body)).status_code == 200
    endpoint.service(BandwidthService).refresh()
    first = (await health_of(http, "bandwidth"))[CHAMPION]
    assert first.bias == pytest.approx(-0.75, abs=0.05), "a quarter of what was predicted"
    body = {"cluster": "north", "pairs": pairs[-1:]}
    assert (await http.post("/v1/bandwidth/pairs", json=body)).status_code == 200
    endpoint.service(BandwidthService).refresh()
    newest = (await health_of(http, "bandwidth"))[CHAMPION].newest[0]
    assert newest.subject.startswith("north: gpu-00")
    assert Collective.ALL_REDUCE.value in newest.subject
    assert abs(math.log(newest.value / newest.measured)) < 0.2, "the others had calibrated the answer by then"


async def test_a_challenger_is_compared_on_the_same_measurements(
    http: httpx.AsyncClient, endpoint: Endpoint, shipped: dict[str, Any]
) -> None:
    trial = load_sizing("shipped")
    trial.version = replace(trial.version, version="7")
    challenger = endpoint.service(SizingService).slots[1]
    assert challenger.alias == CHALLENGER
    challenger.current = trial
    await measure(http, range(2), 1.5)
    endpoint.service(SizingService).compared.refresh()  # type: ignore[union-attr]
    health = await health_of(http, "sizing")
    assert health[CHALLENGER].version == "7"
    assert (health[CHALLENGER].compared, health[CHALLENGER].bias) == (2, health[CHAMPION].bias)


def comparison(ratio: float = 1.0, width: float = 0.1, number: int = 0, **more: Any) -> Comparison:
    figures = {"value": 1.0, "low": 1 / (1 + width), "high": 1 + width, "probability": 0.9, "measured": ratio}
    return Comparison(
        **{
            "owner": "",
            "subject": f"job-{number}",
            "role": CHAMPION,
            "version": "1",
            "at_s": float(number),
            "unit": "bytes",
            **figures,
            **more,
        }
    )


RATIOS = st.lists(st.floats(0.05, 20), min_size=1, max_size=60)


@settings(max_examples=examples(200))
@given(RATIOS, st.floats(0.01, 3))
def test_widened_intervals_would_have_covered_what_they_promise(ratios: list[float], width: float) -> None:
    comparisons = [comparison(ratio, width, number) for number, ratio in enumerate(ratios)]
    factor = widening(comparisons)
    assert 1.0 <= factor <= MOST_WIDENING
    widened = [each for each in comparisons if each.low / factor <= each.measured * (1 + 1e-9)]
    widened = [each for each in widened if each.measured <= each.high * factor * (1 + 1e-9)]
    assert len(widened) >= math.floor(0.9 * len(comparisons)) or factor == MOST_WIDENING


@settings(max_examples=examples(200))
@given(RATIOS)
def test_an_alarm_needs_enough_and_intervals_that_hold_raise_none(ratios: list[float]) -> None:
    health = evaluate([comparison(ratio, number=number) for number, ratio in enumerate(ratios)])
    assert not health.alarm or len(ratios) >= LEAST
    assert (health.widening > 1) <= health.alarm
    holding = evaluate([comparison(ratio, width=20, number=number) for number, ratio in enumerate(ratios)])
    assert (holding.alarm, holding.coverage) == (False, 1.0)


def test_a_subject_counts_once_and_the_newest_counts(tmp_path: Path) -> None:
    table = ComparisonTable(tmp_path / "comparisons.db", "sizing")
    for at_s, measured in ((10.0, 2.0), (30.0, 3.0), (20.0, 4.0)):
        table.add([comparison(measured, at_s=at_s)], 40.0)
    ComparisonTable(tmp_path / "comparisons.db", "bandwidth").add([comparison(9.0)], 40.0)
    assert [each.measured for each in table.newest()] == [3.0]
    table.close()


@pytest.mark.parametrize("figures", [{"measured": 0.0}, {"measured": math.inf}, {"low": -1.0}, {"value": 9.0}])
def test_what_cannot_be_compared_is_refused(figures: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        comparison(**figures)
