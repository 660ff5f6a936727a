"""Lines of an invoice, summed by whom they are attributed to. Idleness and what cannot be attributed keep rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kopt.core.cost.metering import Attributes, MilliGpuMs, idle_of
from kopt.policies.cost.invoice import Line

UNATTRIBUTED = "(unattributed)"
TEAM_LABELS = ("kaiwo.ai/team", "team")


class By(StrEnum):
    NAMESPACE = "namespace"
    QUEUE = "queue"
    TEAM = "team"
    WORKLOAD = "workload"
    POD = "pod"
    NODE = "node"
    MODEL = "model"


class Part(StrEnum):
    PODS = "pods"
    IDLE = "idle"


@dataclass(frozen=True)
class Grouping:
    """By ``by``, or by the label ``label`` where that is given. ``attributes``: of pods by uid; ``nodes``: names."""

    attributes: Mapping[str, Attributes]
    nodes: Mapping[str, str]
    by: By = By.NAMESPACE
    label: str = ""
    pods: Mapping[str, int] = field(default_factory=dict)
    """How many pods a subject stands for, where it is not one."""

    def name(self, line: Line) -> str:
        """The row of a line: of idleness its kind."""
        idle = idle_of(line.usage.subject)
        if idle is not None:
            return f"(idle: {idle.value})"
        if self.by is By.NODE and not self.label:
            return self.nodes.get(line.usage.node_uid, "") or UNATTRIBUTED
        if self.by is By.MODEL and not self.label:
            return line.usage.offer.model or UNATTRIBUTED
        pod = self.attributes.get(line.usage.subject)
        return (self._of(pod) if pod is not None else "") or UNATTRIBUTED

    def steps(self, lines: Iterable[Line]) -> int:
        """Of one workload: all its pods work on the same steps, and one that resumes begins where it resumed."""
        if self.by not in (By.WORKLOAD, By.POD) or self.label:
            return 0
        pods = [pod for line in lines if (pod := self.attributes.get(line.usage.subject)) and pod.last_step >= 0]
        return max((pod.last_step for pod in pods), default=0) - min((pod.first_step for pod in pods), default=0)

    def _of(self, pod: Attributes) -> str:
        if self.label:
            return pod.labels.get(self.label, "")
        if self.by is By.TEAM:
            return label_of(pod.labels)
        return _NAMES[self.by](pod)


def label_of(labels: Mapping[str, str], keys: Sequence[str] = TEAM_LABELS) -> str:
    """The value of the first key that has one: by default, of the team; empty without any."""
    return next((labels[key] for key in keys if labels.get(key)), "")


_NAMES: Mapping[By, Callable[[Attributes], str]] = {
    By.NAMESPACE: lambda pod: pod.namespace,
    By.QUEUE: lambda pod: f"{pod.namespace}/{pod.queue}" if pod.queue else "",
    By.WORKLOAD: lambda pod: f"{pod.namespace}/{pod.workload}",
    By.POD: lambda pod: f"{pod.namespace}/{pod.pod}",
}


@dataclass(frozen=True)
class CostRow:
    """Of one name and one currency; ``unpriced`` is the part of ``used`` without a price."""

    name: str
    part: Part
    used: MilliGpuMs
    unpriced: MilliGpuMs
    micro: int
    currency: str
    pods: int
    steps: int = 0
    """Of a training, if the row is one, as its log shows them; 0 where nothing is known."""

    @property
    def micro_per_step(self) -> int | None:
        """None where no price or no step is known."""
        return round(self.micro / self.steps) if self.steps > 0 and not self.unpriced else None


def attributed(lines: Iterable[Line], grouping: Grouping) -> list[CostRow]:
    """The most expensive first, then what is not attributed, then idleness. Their sums are those of the lines."""
    rows: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        currency = line.usage.price.currency if line.usage.price is not None else ""
        rows.setdefault((grouping.name(line), currency), []).append(line)
    return sorted((_row(name, currency, part, grouping) for (name, currency), part in rows.items()), key=_order)


@dataclass(frozen=True)
class Unused:
    """Of a row's measured pods: what they held while no kernel ran; ``unmeasured`` is what nothing measures."""

    used: MilliGpuMs = 0
    micro: int = 0
    unmeasured: MilliGpuMs = 0


def unused_by_row(
    lines: Iterable[Line], grouping: Grouping, activity: Mapping[str, float]
) -> Mapping[tuple[str, str], Unused]:
    """Allocated but idle, by name and currency. ``activity``: share of time, 0 to 1, in which kernels ran, by uid of a
    pod; what was not measured of a pod's time counts as what was."""
    result: dict[tuple[str, str], Unused] = {}
    for line in lines:
        if idle_of(line.usage.subject) is not None:
            continue
        key = grouping.name(line), line.usage.price.currency if line.usage.price is not None else ""
        before, active = result.get(key, Unused()), activity.get(line.usage.subject)
        if active is None:
            result[key] = replace(before, unmeasured=before.unmeasured + line.usage.used)
            continue
        share = 1 - min(max(active, 0.0), 1.0)
        used, micro = round(line.usage.used * share), round((line.micro or 0) * share)
        result[key] = replace(before, used=before.used + used, micro=before.micro + micro)
    return result


def _row(name: str, currency: str, lines: list[Line], grouping: Grouping) -> CostRow:
    is_idle = idle_of(lines[0].usage.subject) is not None
    used = sum(line.usage.used for line in lines)
    return CostRow(
        name,
        Part.IDLE if is_idle else Part.PODS,
        used,
        0 if currency else used,
        sum(line.micro or 0 for line in lines),
        currency,
        0 if is_idle else sum(grouping.pods.get(subject, 1) for subject in {line.usage.subject for line in lines}),
        grouping.steps(lines),
    )


def _order(row: CostRow) -> tuple[bool, bool, int, int, str]:
    return row.part is Part.IDLE, row.name == UNATTRIBUTED, -row.micro, -row.used, row.name
