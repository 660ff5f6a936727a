"""LendingPools and services.toml name the services and where their demand is measured."""

from pathlib import Path
from typing import Any

import pytest

from kopt.controllers.ingest.demand_source import DemandSource
from kopt.controllers.ingest.sources import SourceError, read_services, sources_of_pool, unique
from kopt.formats.serving_metrics import ENGINES, UnknownEngineError, query_of


def pool(*services: Any) -> dict[str, Any]:
    return {"metadata": {"name": "inference"}, "spec": {"services": list(services)}}


def service(**more: Any) -> dict[str, Any]:
    return {"name": "chat", "namespace": "ml", **more}


def test_a_pool_names_series_and_sources() -> None:
    sources, errors = sources_of_pool(
        pool(
            service(demandSource={"engine": "vLLM"}),
            service(name="search", demand="search-all", demandSource={"query": "sum(increase(x[$step]))"}),
            service(name="pushed by others"),
        )
    )
    assert sources == (
        DemandSource("ml/chat", 'sum(increase(vllm:request_success_total{namespace="ml", service="chat"}[$step]))'),
        DemandSource("search-all", "sum(increase(x[$step]))"),
    )
    assert errors == ()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"engine": "TGI"}, "no metrics of 'TGI' are known; known are vLLM, Triton, KServe, RayServe"),
        ({"engine": "vLLM", "query": "x"}, "either an engine or a query"),
        ({"labels": {"a": "b"}}, "either an engine or a query"),
        ({"engine": "vLLM", "labels": {"a-b": "c"}}, "'a-b' is not the name of a label"),
        ({"engine": "vLLM", "labels": {"a": 1}}, "labels are no mapping"),
        ({"query": "x" * 5000}, "no text of at most"),
        ({"query": ["x"]}, "no text of at most"),
        ("vLLM", "no mapping"),
    ],
)
def test_a_service_that_cannot_be_meant_is_named_and_the_others_are_followed(source: Any, message: str) -> None:
    sources, errors = sources_of_pool(
        pool(service(demandSource=source), service(name="b", demandSource={"query": "q"}))
    )
    assert [source.series for source in sources] == ["ml/b"]
    assert "ml/chat" in errors[0]
    assert message in errors[0]


@pytest.mark.parametrize(
    "document", [{}, {"spec": None}, {"spec": {"services": "x"}}, pool(None, [], "x", {"name": 1})]
)
def test_no_object_breaks_the_reader(document: Any) -> None:
    assert sources_of_pool(document)[0] == ()


def test_values_of_labels_stay_inside_their_quotes() -> None:
    query = query_of("vllm", {"service": 'x"} or vector(1) or {a="\\\n'})
    assert query == 'sum(increase(vllm:request_success_total{service="x\\"} or vector(1) or {a=\\"\\\\\\n"}[$step]))'


def test_counters_beside_the_first_may_be_absent() -> None:
    assert query_of("Triton", {"model": "m"}) == (
        'sum(increase(nv_inference_request_success{model="m"}[$step])) + '
        '(sum(increase(nv_inference_request_failure{model="m"}[$step])) or vector(0))'
    )


def test_every_engine_says_where_its_names_are_documented() -> None:
    assert [engine.engine for engine in ENGINES] == ["vLLM", "Triton", "KServe", "RayServe"]
    assert all(engine.counters and engine.documentation.startswith("https://") for engine in ENGINES)
    with pytest.raises(UnknownEngineError):
        query_of("x" * 1000, {})


def test_services_toml_names_sources_beside_capacities(tmp_path: Path) -> None:
    path = tmp_path / "services.toml"
    path.write_text(
        '[chat]\nengine = "vLLM"\nlabels = {job = "chat"}\ngpus = 8\nper_gpu = 600\n'
        '[search]\nquery = "q"\nseries = "ml/search"\n[other]\ngpus = 8\nper_gpu = 600\n'
    )
    assert read_services(path) == (
        DemandSource("chat", 'sum(increase(vllm:request_success_total{job="chat"}[$step]))'),
        DemandSource("ml/search", "q"),
    )


@pytest.mark.parametrize("text", ["[chat", '[chat]\nengine = "x"', "[chat]\nquery = 1", '[chat]\nquery="q"\nseries=1'])
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "services.toml"
    path.write_text(text)
    with pytest.raises(SourceError):
        read_services(path)


def test_a_series_has_one_source() -> None:
    a, b = DemandSource("chat", "a"), DemandSource("chat", "b")
    assert unique([a, a]) == ((a,), ())
    sources, errors = unique([a, b])
    assert sources == (a,)
    assert "two different sources" in errors[0]
