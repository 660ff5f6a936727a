"""Services of one engine share a query, and what is wrong with one of them costs the others nothing."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kopt.cluster.client.prometheus import PrometheusError
from kopt.controllers.ingest.demand_source import DemandSource
from kopt.controllers.ingest.grouping import LARGEST_GROUP, GroupedReads
from kopt.controllers.ingest.prometheus import Buckets, read_groups
from kopt.controllers.ingest.sources import source_of
from kopt.formats.serving_metrics import grouped_query_of

FIRST, LAST = 5_668_000, 5_668_005


def source(name: str, engine: str = "vLLM") -> DemandSource:
    return source_of(f"ml/{name}", {"engine": engine}, {"namespace": "ml", "service": name})


def series(labels: dict[str, str], value: str) -> dict[str, Any]:
    return {"metric": labels, "values": [[(FIRST + 1) * 300, value]]}


class Server:
    """Counts queries; ``failures`` are raised by the grouped ones, ``bad`` series by both kinds."""

    def __init__(self, failure: PrometheusError | None = None, bad: str = "") -> None:
        self.failure, self.bad = failure, bad
        self.groups: list[int] = []
        self.singles: list[str] = []

    async def single(self, source: DemandSource, first: int, last: int) -> Buckets:
        self.singles.append(source.series)
        if source.series == self.bad:
            raise PrometheusError("NoDemand", "it is negative")
        return {first: 1.0}

    async def group(self, sources: Sequence[DemandSource], first: int, last: int) -> list[Buckets | PrometheusError]:
        self.groups.append(len(sources))
        if self.failure is not None:
            raise self.failure
        wrong = PrometheusError("NoDemand", "it is negative")
        return [wrong if source.series == self.bad else {first: 1.0} for source in sources]

    async def read(self, sources: Sequence[DemandSource]) -> dict[str, Any]:
        reads = GroupedReads(self.single, self.group, asyncio.Semaphore(8))
        answers = await asyncio.gather(*(reads.read(one, FIRST, LAST) for one in sources), return_exceptions=True)
        return {one.series: answer for one, answer in zip(sources, answers, strict=True)}


async def test_a_thousand_services_of_an_engine_are_a_few_queries() -> None:
    server = Server()
    answers = await server.read(
        [*(source(f"s{i}") for i in range(1000)), *(source(f"t{i}", "Triton") for i in range(2))]
    )
    assert server.singles == []
    assert sorted(server.groups) == [2, *[LARGEST_GROUP] * 4]
    assert all(answer == {FIRST: 1.0} for answer in answers.values())


@pytest.mark.parametrize("reason", ["Refused", "Timeout", "BadAnswer"])
async def test_where_a_grouped_query_fails_each_is_asked_about_singly(reason: str) -> None:
    server = Server(PrometheusError(reason, "no"), bad="ml/s3")
    answers = await server.read([source(f"s{i}") for i in range(20)])
    assert len(server.singles) == 20
    failed = [series for series, answer in answers.items() if isinstance(answer, PrometheusError)]
    assert failed == ["ml/s3"]


async def test_a_server_that_is_down_is_not_asked_once_more_for_each() -> None:
    server = Server(PrometheusError("Unreachable", "no"))
    answers = await server.read([source(f"s{i}") for i in range(20)])
    assert server.singles == []
    assert all(isinstance(answer, PrometheusError) for answer in answers.values())


async def test_one_bad_series_costs_the_others_nothing() -> None:
    server = Server(bad="ml/s3")
    answers = await server.read([source(f"s{i}") for i in range(20)])
    assert [series for series, answer in answers.items() if answer != {FIRST: 1.0}] == ["ml/s3"]


async def test_a_source_that_is_not_followed_any_more_costs_the_others_nothing() -> None:
    server = Server()
    reads = GroupedReads(server.single, server.group, asyncio.Semaphore(8))
    tasks = [asyncio.create_task(reads.read(source(f"s{i}"), FIRST, LAST)) for i in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [{FIRST: 1.0}, {FIRST: 1.0}]


def test_what_shares_no_query() -> None:
    assert GroupedReads.takes(source("chat"), FIRST, LAST)
    assert not GroupedReads.takes(DemandSource("ml/chat", "q"), FIRST, LAST)
    assert not GroupedReads.takes(source("chat"), FIRST - 4000, LAST), "a back-fill"


def test_the_query_has_all_values_quoted_and_sums_by_their_names() -> None:
    labels = [{"namespace": "ml", "service": "a.b"}, {"namespace": "ml", "service": 'c|"d'}]
    assert grouped_query_of("vLLM", labels) == (
        "sum by (namespace, service) (increase(vllm:request_success_total"
        '{namespace=~"ml", service=~"a\\\\.b|c\\\\|\\"d"}[$step]))'
    )
    triton = grouped_query_of("triton", [{"model": "x"}])
    assert 'or sum by (model) (increase(nv_inference_request_success{model=~"x"}[$step])) * 0)' in triton
    with pytest.raises(ValueError, match="label"):
        grouped_query_of("vLLM", [{"a b": "x"}])


def test_series_find_their_sources_by_labels() -> None:
    sources = [
        source("a"),
        source("b"),
        source("c"),
        source_of("ml/d", {"engine": "vLLM"}, {"namespace": "", "service": "d"}),
    ]
    result = [
        series({"service": "b", "namespace": "ml"}, "-2"),
        series({"service": "a", "namespace": "ml"}, "3"),
        series({"service": "d"}, "4"),
        series({"service": "other", "namespace": "ml"}, "9"),
    ]
    a, b, c, d = read_groups({"data": {"result": result}}, sources, FIRST, LAST)
    assert (a, c, d) == ({FIRST: 3.0}, {}, {FIRST: 4.0})
    assert isinstance(b, PrometheusError)
    assert b.reason == "NoDemand"
    with pytest.raises(PrometheusError):
        read_groups({"data": {"result": [3]}}, sources, FIRST, LAST)
