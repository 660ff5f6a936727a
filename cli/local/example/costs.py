"""What GPUs of the example cluster cost: five weeks of made-up jobs, metered as a real meter would, and budgets.

The timelines, prices and budgets are computed by the meter's own code; only who ran when is made up.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kopt.cli.local.example.cluster import NODES
from kopt.cli.local.example.kubeconfig import folder_of
from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.kaiwo_budget import budget_of
from kopt.controllers.meter.budgets import status_of
from kopt.controllers.meter.store import CostStore
from kopt.core.cost.metering import Attributes, Demand, Idle, MeteredNode, MeteredPod, Milliseconds, Offer, Rule
from kopt.core.cost.prices import shipped_prices
from kopt.policies.cost import Meter, Observation, advance, invoice
from kopt.policies.cost.budgets import applies, budget_decision, window_of

DAYS, HOUR_MS = 35, 3_600_000
CORDONED_DAY = 20
_SEED, _HOLDER = 7, "example"
_H100, _V100 = Offer("H100-SXM5-80GB", "lambda"), Offer("V100-SXM2-32GB")
_MIX = {(8, 1000): 0.5, (1, 1000): 0.3, (2, 1000): 0.2}
_TEAMS = (
    ("research", "llama-3-8b-sft", "language", 8),
    ("research", "mamba-130m-pretrain", "language", 4),
    ("vision", "resnet50-imagenet", "vision", 8),
    ("vision", "sam2-finetune", "vision", 2),
    ("vision", "clip-embeddings", "", 1),
    ("research", "eval-nightly", "language", 1),
)
SERVICES = (("llama-8b-chat", 4), ("mistral-7b-code", 2), ("whisper-large", 1))


def costs_file(home: Path) -> Path:
    """Removed with everything of the example when it is started anew."""
    return folder_of(home) / "cost.db"


def busy_shares() -> Mapping[str, float]:
    """Share of the time in which GPUs compute, by name of a job or service: services less than trainings. Nothing
    measures what evaluates."""
    rng = random.Random(_SEED)
    names = sorted({name for _, name, _, _ in _TEAMS if "eval" not in name})
    return {**{name: rng.betavariate(9, 3) for name in names}, **{name: 0.41 for name, _ in SERVICES}}


def example_activity(_: Milliseconds, until: Milliseconds) -> Mapping[tuple[str, str], float]:
    """How busy the GPUs of the example's pods are, as an exporter would tell."""
    busy = busy_shares()
    pods = [run.pod.attributes for run in _runs(began_ms(until))]
    return {(pod.namespace, pod.pod): busy[name] for pod in pods if (name := _name_of(pod)) in busy}


def _name_of(pod: Attributes) -> str:
    """Without the hour of a job."""
    name = pod.workload.partition("/")[2]
    return name if pod.namespace == "serving" else name.rpartition("-")[0]


def began_ms(now_ms: Milliseconds) -> Milliseconds:
    return now_ms - now_ms % HOUR_MS - DAYS * 24 * HOUR_MS


@dataclass(frozen=True)
class _Run:
    """A pod's life; its GPU-hours make steps of a training."""

    pod: MeteredPod
    until_ms: Milliseconds


class ExampleCosts:
    """Filled up to now at first, and then with each ``follow``."""

    def __init__(self, path: Path, now_ms: Milliseconds) -> None:
        self._store = CostStore(path)
        self._store.begin(_HOLDER, Rule.MAX)
        self._began_ms = began_ms(now_ms)
        self._runs = list(_runs(self._began_ms))
        self._meters: Mapping[str, Meter] = {}
        self._metered_ms: Milliseconds | None = None
        self._ended: frozenset[str] = frozenset()
        for at_ms in range(self._began_ms, now_ms, HOUR_MS):
            self.follow(at_ms)
        self.follow(now_ms)

    def follow(self, now_ms: Milliseconds) -> None:
        """Up to now; a clock that has gone back is waited for."""
        now_ms = max(now_ms, self._metered_ms or 0)
        pods = [
            run.pod if run.until_ms > now_ms else replace(run.pod, ended_ms=run.until_ms)
            for run in self._runs
            if run.pod.started_ms <= now_ms and run.until_ms > (self._metered_ms or 0)
        ]
        observation = Observation(now_ms, self._nodes(now_ms), pods, {}, self._metered_ms, False, self._ended)
        self._meters, changes = advance(self._meters, observation, Rule.MAX, _MIX)
        self._store.store(_HOLDER, changes, now_ms)
        self._ended |= set(changes.ended)
        self._metered_ms = now_ms

    def budgets(self, now_ms: Milliseconds) -> Sequence[Object]:
        """KaiwoBudgets with the status that the meter would write."""
        attributes = self._store.attributes()
        result = []
        for document in _BUDGETS:
            budget = budget_of(document)
            window = self._store.window(window_of(budget.period, now_ms)[0], now_ms)
            lines = [
                line
                for line in invoice(self._store.usages(window, shipped_prices()))
                if (pod := attributes.get(line.usage.subject)) is not None and applies(budget, pod, frozenset())
            ]
            decided = budget_decision(budget, lines, now_ms)
            result.append({**document, "status": status_of(decided, [], now_ms)})
        return result

    def close(self) -> None:
        self._store.close()

    def _nodes(self, now_ms: Milliseconds) -> dict[str, MeteredNode]:
        """The fourth is kept for a demonstration during the second week, the fifth was cordoned for a day."""
        day = (now_ms - self._began_ms) // (24 * HOUR_MS)
        closed = {
            NODES[3]: Idle.RESERVED if 8 <= day < 15 else None,
            NODES[4]: Idle.UNAVAILABLE if day == CORDONED_DAY else None,
        }
        return {
            f"uid-{name}": MeteredNode(
                f"uid-{name}", name, 8, _V100 if name == NODES[-1] else _H100, self._began_ms, closed.get(name)
            )
            for name in NODES
        }


@dataclass(frozen=True)
class Arrival:
    """A job that comes in an hour of the example and ``lasts`` some; ``node`` is empty where no node has room."""

    hour: int
    lasts: int
    gpus: int
    namespace: str
    name: str
    team: str
    node: str


def arrivals() -> Iterator[Arrival]:
    """Jobs beside the services, in order."""
    rng = random.Random(_SEED)
    free = {name: [8] * (DAYS * 24 + 400) for name in NODES}
    free[NODES[1]] = [unused - sum(gpus for _, gpus in SERVICES) for unused in free[NODES[1]]]
    for hour in range(DAYS * 24 + 200):
        for namespace, name, team, gpus in _TEAMS:
            if rng.random() > 0.07:
                continue
            lasts = min(150, max(1, round(rng.lognormvariate(2.2, 0.8))))
            node = next((each for each in NODES if min(free[each][hour : hour + lasts]) >= gpus), "")
            if node:
                for busy_hour in range(hour, hour + lasts):
                    free[node][busy_hour] -= gpus
            yield Arrival(hour, lasts, gpus, namespace, name, team, node)


def _runs(began_ms: Milliseconds) -> Iterator[_Run]:
    """Services all the time, and jobs as they fit."""
    forever = began_ms + 10 * 365 * 24 * HOUR_MS
    for name, gpus in SERVICES:
        attributes = Attributes("serving", f"{name}-0", f"deployments/{name}", "", {"team": "inference"})
        yield _Run(MeteredPod(f"uid-{name}-0", NODES[1], Demand(gpus), began_ms, attributes=attributes), forever)
    for arrival in arrivals():
        if arrival.node:
            yield _job(began_ms + arrival.hour * HOUR_MS, arrival)


def _job(start_ms: Milliseconds, job: Arrival) -> _Run:
    labels = {"team": job.team} if job.team else {}
    steps = (0, job.lasts * 900) if job.gpus >= 4 else (-1, -1)
    run = f"{job.name}-{job.hour}"
    attributes = Attributes(job.namespace, f"{run}-0", f"jobs/{run}", "gpus", labels, *steps)
    pod = MeteredPod(f"uid-{run}", job.node, Demand(job.gpus), start_ms + 47_000, attributes=attributes)
    return _Run(pod, start_ms + job.lasts * HOUR_MS - 31_000)


_BUDGETS: tuple[Object, ...] = (
    {
        "metadata": {"name": "research"},
        "spec": {"target": {"namespace": "research"}, "limit": {"gpuHours": 9500}, "period": "Month"},
    },
    {
        "metadata": {"name": "vision"},
        "spec": {
            "target": {"namespace": "vision"},
            "limit": {"amount": 4500, "currency": "USD"},
            "period": "Week",
            "softPercent": 75,
        },
    },
    {
        "metadata": {"name": "inference"},
        "spec": {"target": {"labels": {"team": "inference"}}, "limit": {"gpuHours": 150}, "period": "Day"},
    },
)
