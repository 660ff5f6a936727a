"""The catalogue of dashboards, and the documents of Grafana that are made of it (``scripts/chart_dashboards.py``).

Reading resources of this package is its only I/O: they are part of the code, the same on every machine.
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any

PACKAGE = "kopt.core.dashboards"
DATASOURCE = "datasource"
"""The variable by which a reader selects the Prometheus."""


class PanelKind(StrEnum):
    """What a panel is drawn as."""

    LINES = "lines"
    STAT = "stat"
    """One number, of now."""
    BARS = "bars"
    """A bar for each series, of now."""


@dataclass(frozen=True)
class Query:
    """An expression of PromQL; ``legend`` names its series and may hold ``{{label}}``."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """``unit`` is one of Grafana's; ``row`` is a heading above it, empty for one that goes on in the row before."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: PanelKind = PanelKind.LINES
    row: str = ""
    stacked: bool = False


@dataclass(frozen=True)
class Variable:
    """What a reader selects, ``$name`` in expressions: ``values`` is a query for them, else ``text`` is typed."""

    name: str
    label: str
    values: str = ""
    text: str = ""


@dataclass(frozen=True)
class Dashboard:
    """``name`` is that of its file; ``uid`` stays the same in every Grafana, so that links to it last."""

    name: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    panels: tuple[Panel, ...]

    @property
    def uid(self) -> str:
        return f"kopt-{self.name}"


@functools.cache
def dashboards() -> tuple[Dashboard, ...]:
    """All of them, by name."""
    files = {file.name.removesuffix(".toml"): file for file in _files(".toml")}
    return tuple(_dashboard(name, tomllib.loads(file.read_text(encoding="utf-8"))) for name, file in files.items())


def document(name: str) -> str:
    """The dashboard as JSON that Grafana imports. Raises KeyError for a name that none has."""
    for file in _files(".json"):
        if file.name == f"{name}.json":
            return str(file.read_text(encoding="utf-8"))
    raise KeyError(name)


def _files(suffix: str) -> list[Any]:
    files = sorted(resources.files(PACKAGE).iterdir(), key=lambda file: file.name)
    return [file for file in files if file.name.endswith(suffix)]


def _dashboard(name: str, table: Mapping[str, Any]) -> Dashboard:
    variables = tuple(Variable(key, **entry) for key, entry in table.get("variables", {}).items())
    return Dashboard(name, table["title"], table["description"], variables, tuple(map(_panel, table["panels"])))


def _panel(entry: Mapping[str, Any]) -> Panel:
    queries = tuple(Query(" ".join(query["expr"].split()), query["legend"]) for query in entry["queries"])
    kind = PanelKind(entry.get("kind", PanelKind.LINES))
    return Panel(**{**entry, "queries": queries, "kind": kind})
