"""Which services are followed, as LendingPools and services.toml name them::

    [chat]                       # its series at the endpoint
    engine = "vLLM"              # or Triton, KServe, RayServe
    labels = {service = "chat"}  # of its metrics in Prometheus

    [search]
    query = 'sum(increase(search_requests_total[$step]))'

Other keys of services.toml say what its GPUs serve, for the pages; services without an engine and a query are pushed by
others, or not at all.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import mapping, text
from kopt.controllers.ingest.demand_source import DemandSource
from kopt.formats.serving_metrics import query_of

LONGEST_QUERY = 4096
_LONGEST_NAME = 253


class SourceError(ValueError):
    """A service's source that cannot be meant; the message names the service and the field."""


def sources_of_pool(document: Object) -> tuple[tuple[DemandSource, ...], tuple[str, ...]]:
    """The sources of a LendingPool, and what is wrong with those of its services that are left out."""
    sources, errors = [], []
    services = mapping(document, "spec").get("services")
    for item in services if isinstance(services, list) else []:
        service = item if isinstance(item, Mapping) else {}
        name, namespace = text(service, "name"), text(service, "namespace")
        source = service.get("demandSource")
        if not name or not source:
            continue
        series = text(service, "demand") or f"{namespace}/{name}"
        try:
            sources.append(source_of(series, source, {"namespace": namespace, "service": name}))
        except SourceError as error:
            errors.append(str(error))
    return tuple(sources), tuple(errors)


def read_services(path: Path) -> tuple[DemandSource, ...]:
    """The sources of a services.toml. Raises SourceError."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{path}: {error}") from error
    entries = {name: entry for name, entry in table.items() if isinstance(entry, dict)}
    return tuple(
        source_of(entry.get("series") or name, entry, {"service": name})
        for name, entry in entries.items()
        if "engine" in entry or "query" in entry
    )


def unique(sources: Iterable[DemandSource]) -> tuple[tuple[DemandSource, ...], tuple[str, ...]]:
    """One source for each series, the first that names it; and which series are named with different queries."""
    by_series: dict[str, DemandSource] = {}
    errors = []
    for source in sources:
        first = by_series.setdefault(source.series, source)
        if first != source:
            errors.append(f"{source.series}: two different sources are named; the first one counts")
    return tuple(by_series.values()), tuple(errors)


def source_of(series: Any, fields: Any, default_labels: Mapping[str, str]) -> DemandSource:
    """The source that ``fields`` (engine, labels, query) say. Raises SourceError."""
    if not isinstance(series, str) or not 0 < len(series) <= _LONGEST_NAME or not series.isprintable():
        raise SourceError(f"{str(series)[:60]!r} is no name of a series: at most {_LONGEST_NAME} printable characters")
    if not isinstance(fields, Mapping):
        raise SourceError(f"{series}: the source is no mapping of engine, labels and query")
    engine, query = fields.get("engine", ""), fields.get("query", "")
    labels = fields.get("labels") or default_labels
    if bool(engine) == bool(query):
        raise SourceError(f"{series}: give either an engine or a query")
    if not isinstance(query, str) or len(query) > LONGEST_QUERY:
        raise SourceError(f"{series}: the query is no text of at most {LONGEST_QUERY} characters")
    if query:
        return DemandSource(series, query)
    if not isinstance(labels, Mapping) or not all(isinstance(value, str) for value in labels.values()):
        raise SourceError(f"{series}: labels are no mapping of names to texts")
    try:
        sorted_labels = tuple(sorted((str(name), value) for name, value in labels.items()))
        return DemandSource(series, query_of(str(engine), labels), str(engine), sorted_labels)
    except ValueError as error:
        raise SourceError(f"{series}: {error}") from error
