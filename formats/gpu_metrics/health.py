"""Evidence against GPUs from series of dcgm-exporter and AMD's device-metrics-exporter (``health_metrics.toml``).

Counters speak by their growth, so each look needs the readings of the one before; a counter that fell has begun anew,
as with a new exporter, and so has one that is seen for the first time: what it counted before is nobody's news.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kopt.core.hardware.gpu_telemetry import PREFIX
from kopt.core.hardware.health import Evidence, MetricRule, metric_rules
from kopt.formats.gpu_metrics.exporters import Series

_NODE_LABELS = ("node", "exported_node", "Hostname", "hostname", "kubernetes_node")
_GPU_LABELS = ("gpu", "gpu_id", "gpu_index", "exported_gpu")
_OWN_XIDS = f"{PREFIX}xid_errors_total"
_MOST_EVENTS = 20.0
"""Of one code in one look."""


@dataclass
class HealthReadings:
    """What one look says, by node as the exporters call it: evidence, and the readings for the next look."""

    evidence: dict[str, list[Evidence]] = field(default_factory=dict)
    counters: dict[str, dict[str, float]] = field(default_factory=dict)


def names() -> tuple[str, ...]:
    """The series to ask for, AMD's with and without their prefix."""
    amd = [f"amd_{name}" for name in metric_rules() if not name.startswith(("DCGM", PREFIX))]
    return (*metric_rules(), *amd)


def labels() -> tuple[str, ...]:
    """The labels that are read."""
    return (*_NODE_LABELS, *_GPU_LABELS, "xid")


def node_of(own: Mapping[str, str]) -> str:
    """The node that a series is of; empty where it does not say."""
    return next((own[name] for name in _NODE_LABELS if own.get(name)), "")


def read_health(
    series: Iterable[Series], before: Mapping[str, Mapping[str, float]], at_s: float, elapsed_s: float
) -> HealthReadings:
    """``before``: readings of the last look, by node. ``elapsed_s``: since then, which durations grow by."""
    result = HealthReadings()
    rows = [row for row in map(_row, series) if row is not None]
    theirs = [row for row in rows if not row[2].name.startswith(PREFIX)]
    counted = {(node, gpu) for node, gpu, rule, _, _ in theirs if rule.read == "xid-count"}
    vendors = {(node, gpu, _is_xid(rule)) for node, gpu, rule, _, _ in theirs}
    for node, gpu, rule, own, value in rows:
        # The telemetry agent tells of the same events as a vendor's exporter that is scraped, and of two series of an
        # exporter one does not show a code that comes twice. What counts twice is only remembered: its exporter may
        # fall silent, as of a GPU that fell off the bus.
        ours = rule.name.startswith(PREFIX)
        twice = (node, gpu, _is_xid(rule)) in vendors if ours else rule.read == "xid" and (node, gpu) in counted
        reading = _Reading(HealthReadings() if twice else result, node, gpu, before.get(node, {}), at_s, elapsed_s)
        reading.read(rule, own, value)
        if twice:
            result.counters.setdefault(node, {}).update(reading.counters)
    _forget_absent(result, before, {(node, gpu) for node, gpu, rule, _, _ in rows if rule.name.startswith(PREFIX)})
    return result


def _forget_absent(
    result: HealthReadings, before: Mapping[str, Mapping[str, float]], read: Iterable[tuple[str, str]]
) -> None:
    """Where the telemetry agent shows a GPU without a code, its count of it begins anew, as after another boot."""
    for node, gpu in read:
        now = result.counters.setdefault(node, {})
        for key in before.get(node, {}):
            if key.startswith(f"{_OWN_XIDS}/") and key.endswith(f"/{gpu}"):
                now.setdefault(key, 0.0)


def _is_xid(rule: MetricRule) -> bool:
    return rule.read in ("xid", "xid-count")


def _row(item: Series) -> tuple[str, str, MetricRule, Mapping[str, str], float] | None:
    name, own, value = item
    rule = metric_rules().get(name.removeprefix("amd_"))
    node = node_of(own)
    gpu = next((own[label] for label in _GPU_LABELS if own.get(label)), "")
    if rule is None or not node or not gpu.isdigit() or len(gpu) > 4 or not 0 <= value < 2.0**53:
        return None
    return node, str(int(gpu)), rule, own, value


class _Reading:
    """One GPU in one look."""

    def __init__(
        self,
        result: HealthReadings,
        node: str,
        gpu: str,
        before: Mapping[str, float],
        at_s: float,
        elapsed_s: float,
    ) -> None:
        self._result, self._node, self._gpu, self._before = result, node, gpu, before
        self._at_s, self._elapsed_s = at_s, elapsed_s

    @property
    def counters(self) -> Mapping[str, float]:
        """For the next look."""
        return self._result.counters.get(self._node, {})

    def read(self, rule: MetricRule, own: Mapping[str, str], value: float) -> None:
        if rule.read == "xid":
            last = self._before.get(self._key(rule.name), 0.0)
            self._keep(rule.name, value)
            if value and value != last:
                self._add(f"XID_{value:.0f}", 1.0)
        elif rule.read == "xid-count":
            xid = own.get("xid", "")
            if xid.isdigit() and int(xid):
                # Counts within a window of the exporter: what left it is no event.
                growth = value - self._before.get(self._key(f"{rule.name}/{int(xid)}"), 0.0)
                self._keep(f"{rule.name}/{int(xid)}", value)
                self._add(f"XID_{int(xid)}", growth)
        elif rule.read in ("counter", "growth"):
            growth = self._growth(rule.name, value)
            if rule.read == "counter":
                self._add(rule.code, float(growth >= rule.least), f"{growth:.0f} more" if growth > 1 else "")
            elif growth > 0:
                self._add(rule.code, self._elapsed_s)
        elif rule.read == "bits":
            for code, mask in rule.masks.items():
                if int(value) & mask:
                    self._add(code, self._elapsed_s)
        else:
            bad = value >= rule.least if rule.read == "state" else value < rule.least
            self._add(rule.code, float(bad), over=True)

    def _growth(self, name: str, value: float) -> float:
        last = self._before.get(self._key(name))
        self._keep(name, value)
        return max(0.0, value - last) if last is not None else 0.0

    def _key(self, name: str) -> str:
        return f"{name}/{self._gpu}"

    def _keep(self, name: str, value: float) -> None:
        self._result.counters.setdefault(self._node, {})[self._key(name)] = value

    def _add(self, code: str, amount: float, detail: str = "", *, over: bool = False) -> None:
        """``over``: also that there is nothing is said, which ends a state."""
        if amount > 0 or over:
            evidence = Evidence(code, self._gpu, min(amount, max(_MOST_EVENTS, self._elapsed_s)), self._at_s, detail)
            self._result.evidence.setdefault(self._node, []).append(evidence)
