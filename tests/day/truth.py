"""What really was, as the player wrote it down when it did it: who had which GPUs from when until when."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.day.agents import Holding
from tests.day.plan import Run

OF_IDLE = 0.05
"""Computing for less of the time is idle."""


@dataclass
class Held:
    """A pod that was bound; ``end_s`` is None while it has its GPUs. Unix seconds."""

    run: Run
    namespace: str
    bound_s: float
    end_s: float | None = None

    @property
    def gpus(self) -> float:
        return self.run.fraction_milli / 1000 if self.run.fraction_milli else len(self.run.gpus)

    def seconds(self, begin_s: float, until_s: float) -> float:
        """For how long it had them in a window."""
        end_s = until_s if self.end_s is None else min(self.end_s, until_s)
        return max(0.0, end_s - max(self.bound_s, begin_s))


@dataclass
class Truth:
    """``closed_since_s``: nodes that are lost, since when; ``broken``: GPUs of others that can be given to nobody."""

    nodes: int
    gpus: int
    began_s: float
    held: dict[str, Held] = field(default_factory=dict)
    closed_since_s: dict[int, float] = field(default_factory=dict)
    broken: dict[int, int] = field(default_factory=dict)
    on_node: dict[int, list[Held]] = field(default_factory=dict)

    def bound(self, held: Held) -> None:
        self.held[held.run.pod] = held
        self.on_node.setdefault(held.run.node, []).append(held)

    @property
    def now(self) -> list[Held]:
        # The agents ask from a thread of their own.
        return [each for each in list(self.held.values()) if each.end_s is None]

    def holders(self, node: int) -> dict[int, Holding]:
        """What its kubelet has given out: of fractions by annotation it knows nothing."""
        return {
            gpu: Holding(each.namespace, each.run.pod, each.run.busy)
            for each in list(self.on_node.get(node, ()))
            if each.end_s is None
            for gpu in each.run.gpus
        }

    @property
    def installed(self) -> float:
        return float(self.nodes * self.gpus)

    @property
    def allocated(self) -> float:
        return sum(each.gpus for each in self.now)

    @property
    def unavailable(self) -> float:
        """Of nodes that are lost, and of broken GPUs, what nobody has."""
        lost = sum(self.gpus - self._held_on(node) for node in self.closed_since_s)
        return lost + sum(min(count, self.gpus - self._held_on(node)) for node, count in self.broken.items())

    def unavailable_at(self, at_s: float) -> float:
        """The same at a time; of the lost nodes alone."""
        return sum(
            self.gpus - self.at(at_s, lambda each: each.gpus * (each.run.node == node))  # noqa: B023
            for node, since_s in self.closed_since_s.items()
            if since_s <= at_s
        )

    @property
    def free(self) -> float:
        return self.installed - self.allocated - self.unavailable

    def _held_on(self, node: int) -> float:
        return sum(each.gpus for each in self.now if each.run.node == node)

    @property
    def measured(self) -> list[Held]:
        """Those of whose GPUs something says how busy they are."""
        return [each for each in self.now if each.run.gpus and each.run.node not in self.closed_since_s]

    @property
    def fractions(self) -> float:
        """Of them no kubelet says whose they are: the GPU is measured, and no series names a pod."""
        return sum(each.gpus for each in self.now if each.run.fraction_milli)

    def busy(self, also_gpus: float = 0.0) -> float | None:
        """The mean of the GPUs that pods have and that are measured; ``also_gpus`` more that compute nothing."""
        gpus = also_gpus + sum(each.gpus for each in self.measured)
        return sum(each.gpus * each.run.busy for each in self.measured) / gpus if gpus else None

    @property
    def idle_now(self) -> float:
        return self.fractions + sum(each.gpus for each in self.measured if each.run.busy < OF_IDLE)

    def idle_for(self, span_s: float, now_s: float, slack_s: float) -> tuple[float, float]:
        """GPUs that have been held and idle for a span: at least, and at most, where begins count to ``slack_s``."""
        idle = [each for each in self.measured if each.run.busy < OF_IDLE]
        held_s = [(each.gpus, now_s - each.bound_s) for each in idle]
        sure, may = (sum(gpus for gpus, own_s in held_s if own_s >= span_s + more_s) for more_s in (slack_s, -slack_s))
        return sure, may

    def by(self, name_of: Callable[[Held], str], value: Callable[[Held], float]) -> dict[str, float]:
        """Sums over all that were ever held."""
        return summed((name_of(each), value(each)) for each in self.held.values())

    def gpu_hours(self, until_s: float) -> float:
        return sum(each.gpus * each.seconds(self.began_s, until_s) for each in self.held.values()) / 3600

    def gpu_hours_by_team(self, until_s: float) -> dict[str, float]:
        return self.by(lambda each: each.run.team, lambda each: each.gpus * each.seconds(self.began_s, until_s) / 3600)

    def unused_gpu_hours(self, until_s: float) -> float:
        """Of GPUs that were measured: until their node was lost."""
        total = 0.0
        for each in self.held.values():
            lost_s = self.closed_since_s.get(each.run.node, until_s)
            seconds = each.seconds(self.began_s, until_s if lost_s < each.bound_s else min(until_s, lost_s))
            total += len(each.run.gpus) * seconds * (1 - each.run.busy) / 3600
        return total

    def at(self, at_s: float, what: Callable[[Held], float]) -> float:
        return sum(what(each) for each in self.held.values() if each.seconds(at_s, at_s + 1e-6) > 0)


def summed(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    result: dict[str, float] = {}
    for name, value in parts:
        result[name] = result.get(name, 0.0) + value
    return {name: value for name, value in result.items() if value}
