"""Demand from Prometheus: the buckets of each source, by a query of its own or by one for many."""

import math
from collections.abc import Sequence
from typing import Any

from kopt.cluster.client.prometheus import Prometheus, PrometheusError, series_of
from kopt.controllers.ingest.demand_source import DemandSource
from kopt.formats.serving_metrics import STEP, grouped_query_of
from kopt.serving.contract.common import GRID_S

_NO_ANSWER = "this is not Prometheus' answer to a range query"
Buckets = dict[int, float]
"""Requests by bucket, numbered from 1970; a bucket that is not there is a gap."""


class DemandQueries:
    """Queries of one server for demand."""

    def __init__(self, server: Prometheus) -> None:
        self._server = server

    async def buckets(self, source: DemandSource, first: int, last: int) -> Buckets:
        """What was measured in the buckets ``first`` to ``last``. Raises PrometheusError."""
        return read_matrix(await self._range(source.query, first, last), first, last)

    async def grouped(self, sources: Sequence[DemandSource], first: int, last: int) -> list[Buckets | PrometheusError]:
        """``buckets`` of sources of one engine with the same names of labels, in their order, by one query.

        What is wrong with one series stays with its source. Raises PrometheusError where the query as a whole fails.
        """
        query = grouped_query_of(sources[0].engine, [dict(source.labels) for source in sources])
        return read_groups(await self._range(query, first, last), sources, first, last)

    async def _range(self, query: str, first: int, last: int) -> Any:
        # A point is the end of its bucket, as PromQL looks back.
        start_s, end_s = (first + 1) * GRID_S, (last + 1) * GRID_S
        return await self._server.over(query.replace(STEP, f"{GRID_S}s"), start_s, end_s, GRID_S)


def read_matrix(document: Any, first: int, last: int) -> Buckets:
    """The one series of an answer to a range query. Raises PrometheusError for several, and for what is no demand."""
    series = series_of(document)
    if len(series) > 1:
        text = f"the query gives {len(series)} series; sum them to one, as in sum(increase(…))"
        raise PrometheusError("SeveralSeries", text)
    return _read_series(series[0], first, last) if series else {}


def read_groups(
    document: Any, sources: Sequence[DemandSource], first: int, last: int
) -> list[Buckets | PrometheusError]:
    """The series of an answer to a grouped query by the labels of ``sources``; empty where there is none."""
    names = [name for name, _ in sources[0].labels]
    by_labels: dict[tuple[str, ...], Any] = {}
    for item in series_of(document):
        try:
            metric = item["metric"]
            # A label that is absent is an empty one.
            by_labels[tuple([metric.get(name, "") for name in names])] = item
        except (KeyError, TypeError, AttributeError) as error:
            raise PrometheusError("BadAnswer", _NO_ANSWER) from error
    result: list[Buckets | PrometheusError] = []
    for source in sources:
        item = by_labels.get(tuple([value for _, value in source.labels]))
        try:
            result.append({} if item is None else _read_series(item, first, last))
        except PrometheusError as error:
            result.append(error)
    return result


def _read_series(item: Any, first: int, last: int) -> Buckets:
    buckets: Buckets = {}
    try:
        for at, text in item["values"]:
            at_s, value = float(at), float(text)
            bucket = round(at_s / GRID_S) - 1 if math.isfinite(at_s) else -1
            if not first <= bucket <= last or abs(at_s - (bucket + 1) * GRID_S) > 1:
                raise PrometheusError("BadAnswer", "Prometheus answered for times that it was not asked for")
            # Written so that neither a gap nor what is no number of requests passes.
            if 0 <= value < math.inf:
                buckets[bucket] = value
            elif not math.isnan(value):
                raise PrometheusError("NoDemand", f"the query gives {value:g}, which is no number of requests")
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PrometheusError("BadAnswer", _NO_ANSWER) from error
    return buckets
