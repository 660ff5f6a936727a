"""A challenger on trial: the same questions always, what it fails goes to the champion, and it stops by itself."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from kopt.core.prediction import ModelVersion
from kopt.core.settings import Settings
from kopt.models.base import Predictor
from kopt.models.registry.aliases import CHALLENGER, CHAMPION
from kopt.models.registry.loading import load_predictor
from kopt.models.registry.registry import NotRegisteredError, RegisteredModel
from kopt.serving.bandwidth.service import BandwidthService
from kopt.serving.contract.common import DEADLINE_HEADER
from kopt.serving.contract.model_answers import parse_models
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.demand.service import DemandService
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.measured.health import LEAST
from tests.serving.conftest import URL, StandInModel, digest_of, history, no_store
from tests.serving.test_bandwidth_pairs import NODE
from tests.serving.test_measured import measure, training

PREDICTORS = ("demand", "sizing", "checkpoint", "bandwidth", "runtime")
PERCENT, QUESTIONS = 30, 200


@cache
def _model(name: str, version: str) -> Any:
    model: Any = StandInModel(version) if name == "demand" else load_predictor(name, "shipped")
    model.version = ModelVersion(name, version, digest_of(version))
    return model


class Source:
    """A registry in memory with the shipped models as champions and again as challengers on trial."""

    def __init__(self) -> None:
        self.percent = PERCENT
        self.models = {(name, version): _model(name, version) for name in PREDICTORS for version in ("1", "2")}

    def resolve(self, name: str, alias: str) -> RegisteredModel:
        versions = {CHAMPION: "1", CHALLENGER: "2"}
        if alias not in versions:
            raise NotRegisteredError(alias)
        return self._registered(name, versions[alias])

    def load(self, name: str, version: str) -> Predictor:
        model: Predictor = self.models[name, version]
        return model

    def list(self, name: str) -> tuple[RegisteredModel, ...]:
        return tuple(self._registered(name, version) for of, version in self.models if of == name)

    def canary_percent(self, model: RegisteredModel) -> int:
        return self.percent

    def _registered(self, name: str, version: str) -> RegisteredModel:
        return RegisteredModel(
            name, version, digest_of(version), "run", 0.0, (CHAMPION if version == "1" else CHALLENGER,)
        )


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def endpoint(source: Source, tmp_path: Path) -> Iterator[Endpoint]:
    built = assemble(Settings(home=tmp_path), Parts(source, StoredFeatures(no_store), refresh_s=3600))
    built.start()
    refresh(built)
    yield built
    built.stop()


def refresh(endpoint: Endpoint) -> None:
    for service in endpoint.services.values():
        service.refresh()


def served(endpoint: Endpoint) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=URL, headers={DEADLINE_HEADER: "30000"})


def body(predictor: str, number: int) -> dict[str, Any]:
    return {
        "demand": {"series": [history(name=f"service-{number}")]},
        "sizing": {"workload": training(number), "gpu": "h100"},
        "checkpoint": {"job": f"team/job-{number}", "lines": ["step 1/100 loss 1.0"]},
        "bandwidth": {
            "topology": NODE.to_dict(),
            "gpu_sets": [[0, 1]],
            "collective": "all_reduce",
            "bytes": 1000 + number,
        },
        "runtime": {"queue": f"queue-{number}", "gpus": 8},
    }[predictor]


async def versions(http: httpx.AsyncClient, predictor: str, numbers: range) -> list[str]:
    result = []
    for number in numbers:
        reply = await http.post(f"/v1/{predictor}", json=body(predictor, number))
        assert reply.status_code == 200, reply.text
        answer = reply.json()
        assert not answer.get("fallback"), answer
        result.append(answer["model"]["version"])
    return result


async def canary(http: httpx.AsyncClient, predictor: str) -> tuple[int, list[str]]:
    """What the endpoint says of the trial, here and in its metrics: percentage, and why it was stopped."""
    document = parse_models((await http.get("/v1/models")).json())
    metrics = (await http.get("/metrics")).text
    (percent,) = [row.canary_percent for row in document.models if (row.name, row.version) == (predictor, "2")]
    assert f'kopt_canary_percent{{predictor="{predictor}"}} {float(percent)}' in metrics
    reasons = [
        reason.message for reason in document.refused if predictor in reason.message or reason.code != "NO_MODEL"
    ]
    assert f'kopt_canary_stopped{{predictor="{predictor}"}} {float(bool(reasons))}' in metrics
    return percent, reasons


@pytest.mark.parametrize("predictor", PREDICTORS)
async def test_a_share_of_the_questions_goes_to_the_challenger_always_the_same(
    endpoint: Endpoint, source: Source, predictor: str
) -> None:
    count = QUESTIONS if predictor in ("demand", "bandwidth") else 80
    async with served(endpoint) as http:
        first = await versions(http, predictor, range(count))
        assert 0.15 < Counter(first)["2"] / count < 0.45
        assert await versions(http, predictor, range(count)) == first
        assert await canary(http, predictor) == (PERCENT, [])
        source.percent = 0
        await asyncio.to_thread(refresh, endpoint)
        assert set(await versions(http, predictor, range(count))) == {"1"}
        assert (await canary(http, predictor))[0] == 0


@pytest.mark.parametrize("predictor", PREDICTORS)
async def test_what_the_challenger_fails_on_is_answered_by_the_champion_and_ends_the_trial(
    endpoint: Endpoint, source: Source, predictor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken on purpose")

    asked = {
        "demand": "forecast",
        "sizing": "predict",
        "checkpoint": "classifier",
        "bandwidth": "estimate",
        "runtime": "answer",
    }[predictor]
    failing: Any = broken if predictor != "checkpoint" else property(broken)
    model = source.models[predictor, "2"]
    kind = type(model)
    # The challenger alone: a class of its own.
    monkeypatch.setattr(model, "__class__", type(kind.__name__, (kind,), {asked: failing}))
    if predictor == "bandwidth":
        monkeypatch.setattr(model.__class__, "estimate_set", broken, raising=False)
    async with served(endpoint) as http:
        assert set(await versions(http, predictor, range(80))) == {"1"}, "nobody notices"
        percent, reasons = await canary(http, predictor)
        assert percent == 0
        assert any("failed on 3 of its last" in reason for reason in reasons)
        text = (await http.get("/metrics")).text
        assert f'kopt_canary_answers_total{{outcome="failed",predictor="{predictor}"}} 3.0' in text
        source.percent = PERCENT - 1
        await asyncio.to_thread(refresh, endpoint)
        assert (await canary(http, predictor)) == (PERCENT - 1, []), "another share is another trial"


async def test_a_challenger_whose_intervals_miss_answers_nobody(endpoint: Endpoint, source: Source) -> None:
    async with served(endpoint) as http:
        await measure(http, range(LEAST + 4), 40.0)
        await asyncio.to_thread(refresh, endpoint)
        percent, reasons = await canary(http, "sizing")
        assert percent == 0
        assert any("lay in the predicted interval" in reason for reason in reasons)
        assert set(await versions(http, "sizing", range(40))) == {"1"}


async def test_predictions_are_compared_with_demand_under_the_model_that_made_them(endpoint: Endpoint) -> None:
    service = endpoint.service(DemandService)
    async with served(endpoint) as http:
        answered = await versions(http, "demand", range(20))
        assert set(answered) == {"1", "2"}
    assert service.observer is not None
    await asyncio.to_thread(service.observer.stop)
    assert service.table is not None
    rows = set(service.table._db.query("SELECT series, role, version FROM prediction"))
    assert rows == {
        (f"service-{number}", role, version)
        for number in range(20)
        for role, version in ((CHAMPION, "1"), (CHALLENGER, "2"))
    }


def test_the_base_of_all_services_has_the_trial(endpoint: Endpoint) -> None:
    assert {service.canary.percent for service in endpoint.services.values()} == {PERCENT}
    assert endpoint.service(BandwidthService).model_for(lambda: "x") is not None
