"""The catalogue of alert rules, and the rule groups that Prometheus evaluates. Reading resources of this package is its
only I/O: they are part of the code, the same on every machine.
"""

import functools
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources
from typing import Any

PREFIX = "Kopt"
"""Of the names that Prometheus sees, where rules of others are beside ours."""
_RECORDED = "recorded"


class Severity(StrEnum):
    """Whether somebody should know some day, today, or now."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Source(StrEnum):
    """Whose metrics a rule is about; without them it never fires."""

    KOPT = "kopt"
    KUBE_STATE_METRICS = "kube-state-metrics"
    CADVISOR = "cadvisor"
    NODE_EXPORTER = "node-exporter"
    GPU_EXPORTER = "gpu-exporter"
    """dcgm-exporter or AMD's device-metrics-exporter."""
    DCGM_EXPORTER = "dcgm-exporter"
    KUEUE = "kueue"


@dataclass(frozen=True)
class Example:
    """Series in promtool's notation, a sample a minute; when the rule is quiet, fires with which labels, and is quiet
    again. A test holds every rule to its example."""

    series: Mapping[str, str]
    quiet_at: str
    fires_at: str
    resolved_at: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AlertRule:
    """``summary`` is one of Prometheus' templates; ``wait`` is for how long ``expr`` has to hold. ``every`` is for what
    somebody has to know sooner than by Prometheus' own interval, which is where it is empty; only series that are
    scraped as often are worth it."""

    name: str
    kind: str
    severity: Severity
    needs: tuple[Source, ...]
    expr: str
    wait: str
    summary: str
    means: str
    do: str
    example: Example
    every: str = ""

    @property
    def alert(self) -> str:
        """Its name in Prometheus."""
        return PREFIX + self.name


@dataclass(frozen=True)
class RecordedRule:
    """A series that several rules, and dashboards, share. ``labels`` are those of its result beside what ``expr``
    keeps; ``every`` is for what is dear to evaluate, empty for Prometheus' own interval."""

    name: str
    expr: str
    means: str
    labels: Mapping[str, str] = field(default_factory=dict)
    every: str = ""

    @property
    def document(self) -> dict[str, Any]:
        """As a rule file has it."""
        labels = {"labels": dict(self.labels)} if self.labels else {}
        return {"record": self.name, "expr": self.expr, **labels}


@functools.cache
def kinds() -> Mapping[str, str]:
    """Titles by kind, in the order of their names."""
    return {kind: str(table["title"]) for kind, table in _tables().items() if kind != _RECORDED}


@functools.cache
def alert_rules() -> tuple[AlertRule, ...]:
    """All of them, by kind, the least severe first."""
    rules = [
        _rule(kind, name, entry)
        for kind, table in _tables().items()
        if kind != _RECORDED
        for name, entry in table.items()
        if isinstance(entry, dict)
    ]
    return tuple(sorted(rules, key=lambda rule: (rule.kind, list(Severity).index(rule.severity), rule.name)))


@functools.cache
def recorded_rules() -> tuple[RecordedRule, ...]:
    """In the order in which they need each other."""
    return tuple(rule for name, entry in _tables()[_RECORDED].items() for rule in _recorded(name, entry))


def _recorded(name: str, entry: Mapping[str, Any]) -> Iterator[RecordedRule]:
    """One rule, or one for each bucket of a histogram; ``$upto`` in it matches the bounds that a bucket has in it."""
    expr, means, every = " ".join(entry["expr"].split()), entry["means"], entry.get("every", "")
    bounds = entry.get("le", [])
    if not bounds:
        yield RecordedRule(name, expr, means, every=every)
        return
    for count, bound in enumerate(bounds, start=1):
        yield RecordedRule(name, expr.replace("$upto", "|".join(bounds[:count])), means, {"le": bound}, every)
    yield RecordedRule(name, expr.replace("$upto", ".*"), means, {"le": "+Inf"}, every)


def rule_groups(without: Collection[str] = (), labels: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The groups of a Prometheus rule file, without the rules of these names (with or without the prefix).

    Raises KeyError for a name that no rule has.
    """
    names = {name for rule in alert_rules() for name in (rule.name, rule.alert)}
    for name in without:
        if name not in names:
            raise KeyError(name)
    groups = [*_recorded_groups()]
    kept = [rule for rule in alert_rules() if not {rule.name, rule.alert} & set(without)]
    # By kind and interval; those with Prometheus' own interval are a kind's first group.
    for kind, every in sorted({(rule.kind, rule.every) for rule in kept}):
        rules = [_document(rule, labels or {}) for rule in kept if (rule.kind, rule.every) == (kind, every)]
        groups.append(_group(kind, every, rules))
    return groups


def _recorded_groups() -> Iterator[dict[str, Any]]:
    """By interval; those with an interval of their own come after what they need."""
    for every in dict.fromkeys(rule.every for rule in recorded_rules()):
        rules = [rule.document for rule in recorded_rules() if rule.every == every]
        yield _group(_RECORDED, every, rules)


def _group(kind: str, every: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    interval = {"interval": every} if every else {}
    return {"name": f"kopt-{kind}{every and '-' + every}", **interval, "rules": rules}


def _document(rule: AlertRule, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "alert": rule.alert,
        "expr": rule.expr,
        "for": rule.wait,
        "labels": {"severity": rule.severity.value, "kind": rule.kind, **labels},
        "annotations": {"summary": rule.summary, "description": f"{rule.means} {rule.do}"},
    }


def _rule(kind: str, name: str, entry: Mapping[str, Any]) -> AlertRule:
    return AlertRule(
        name,
        kind,
        Severity(entry["severity"]),
        tuple(map(Source, entry["needs"])),
        " ".join(entry["expr"].split()),
        entry["for"],
        entry["summary"],
        entry["means"],
        entry["do"],
        Example(**entry["example"]),
        entry.get("every", ""),
    )


def _tables() -> Mapping[str, dict[str, Any]]:
    files = sorted(resources.files("kopt.core.alerts").iterdir(), key=lambda file: file.name)
    texts = {file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")}
    return {kind: tomllib.loads(file.read_text(encoding="utf-8")) for kind, file in texts.items()}
