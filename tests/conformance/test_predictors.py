"""Every predictor of the list has its part in every layer; ``tests/models/test_conformance.py`` asks the models."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from benchmarked import benchmark_module

from kopt.cli.training.command import command_of
from kopt.core.settings import Settings
from kopt.features.rows import FeatureStoreError
from kopt.models.predictors import PREDICTORS, PredictorSpec, predictor_class, predictor_names
from kopt.models.registry.shipped import shipped_digests, verified_shipped
from kopt.serving.client.blocking import PredictionClient
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.endpoint.openapi import document
from kopt.serving.endpoint.services import SERVICES
from kopt.training.pipeline.default_data import default_data_of
from kopt.training.pipeline.recipe import recipe_of
from kopt.training.pipeline.slices import RunScoring

ROOT = Path(__file__).resolve().parents[2]
NAMES = [spec.name for spec in PREDICTORS]


class EmptySource:
    """A registry without any model."""

    def resolve(self, name: str, alias: str) -> Any:
        from kopt.models.registry.registry import NotRegisteredError

        raise NotRegisteredError(f"{name} has no {alias}")

    def load(self, name: str, version: str) -> Any:
        raise AssertionError("nothing is registered")

    def list(self, name: str) -> tuple[Any, ...]:
        return ()


def no_store() -> Any:
    raise FeatureStoreError("there is no store in this test")


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    assembled = assemble(Settings(home=tmp_path), Parts(EmptySource(), StoredFeatures(no_store)))
    yield assembled
    assembled.stop()


@pytest.fixture(params=PREDICTORS, ids=NAMES)
def spec(request: pytest.FixtureRequest) -> PredictorSpec:
    listed: PredictorSpec = request.param
    return listed


def test_names_are_given_once() -> None:
    assert len(set(NAMES)) == len(PREDICTORS)
    assert predictor_names() == tuple(sorted(NAMES))


def test_the_class_has_the_name_of_the_list(spec: PredictorSpec) -> None:
    assert predictor_class(spec.name).name == spec.name
    assert spec.answers


def test_there_is_an_example_to_ask(spec: PredictorSpec) -> None:
    assert (ROOT / "tests" / "models" / "examples" / f"{spec.name}.py").is_file()


def test_it_can_be_trained(spec: PredictorSpec) -> None:
    recipe = recipe_of(spec.name)
    assert recipe.predictor == spec.name
    assert recipe.modules()
    assert recipe.defaults


def test_the_command_shows_what_the_recipe_scores(spec: PredictorSpec) -> None:
    scoring = type(recipe_of(spec.name).scoring)
    if issubclass(scoring, RunScoring):
        summary = get_type_hints(scoring.summary)["return"]
    else:
        summary, _ = get_args(get_type_hints(scoring.summarise)["return"])
    shown = {field.name for field in dataclasses.fields(command_of(spec.name).row)}
    assert {"slice", "services"} <= shown
    assert shown <= {field.name for field in dataclasses.fields(summary)}


def test_it_ships_a_default_model_or_says_why_not(spec: PredictorSpec) -> None:
    if spec.not_shipped:
        assert spec.name not in shipped_digests()
        return
    assert (verified_shipped(spec.name) / "SOURCES.json").is_file()
    data = default_data_of(spec.name)
    assert data.folder


def test_every_shipped_model_is_of_a_listed_predictor() -> None:
    assert set(shipped_digests()) == {spec.name for spec in PREDICTORS if not spec.not_shipped}


def test_every_predictor_has_a_service() -> None:
    assert [service.name for service in SERVICES] == NAMES


def test_it_is_assembled_with_a_slot_of_its_name(spec: PredictorSpec, endpoint: Endpoint) -> None:
    service = endpoint.services[spec.name]
    (listed,) = (item for item in SERVICES if item.name == spec.name)
    assert type(service) is listed.service
    assert endpoint.service(listed.service) is service
    assert {slot.name for slot in service.slots} == {spec.name}
    assert service.slot.alias == "champion"


def test_its_model_is_refreshed_and_counted(spec: PredictorSpec, endpoint: Endpoint) -> None:
    endpoint.services[spec.name].refresh()
    assert f'kopt_models_refused{{alias="champion",predictor="{spec.name}"}} 0.0' in endpoint.metrics.render().decode()


def test_its_question_is_published(spec: PredictorSpec) -> None:
    path = document()["paths"][f"/v1/{spec.name}"]["post"]
    (listed,) = (item for item in SERVICES if item.name == spec.name)
    body = path["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert body.rpartition("/")[2] in {request.__name__ for request in listed.requests}


def test_an_endpoint_without_it_says_so(spec: PredictorSpec) -> None:
    (listed,) = (item for item in SERVICES if item.name == spec.name)
    assert listed.absent.endswith(".")


def test_both_clients_answer_with_what_the_service_promises(spec: PredictorSpec) -> None:
    (listed,) = (item for item in SERVICES if item.name == spec.name)
    for client in (AsyncPredictionClient, PredictionClient):
        answer = get_type_hints(getattr(client, spec.name, client.ask))["return"]
        assert listed.answer in (answer, get_origin(answer))


def test_a_training_job_of_the_chart_may_train_it(spec: PredictorSpec) -> None:
    schema = json.loads((ROOT / "deploy" / "chart" / "values.schema.json").read_text(encoding="utf-8"))
    jobs = schema["properties"]["training"]["properties"]["jobs"]["items"]
    assert spec.name in jobs["properties"]["predictor"]["enum"]


def test_it_is_documented(spec: PredictorSpec) -> None:
    assert f"- **{spec.name.capitalize()}**:" in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_it_is_measured_beside_baselines(spec: PredictorSpec) -> None:
    benchmarks = benchmark_module("__main__").BENCHMARKS
    assert (ROOT / f"{benchmarks[spec.name].replace('.', '/')}.py").is_file()
