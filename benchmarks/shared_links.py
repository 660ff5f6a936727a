"""What predictions beside other jobs' traffic are worth, against a simulation of flows. Nothing here is measured.

Nodes of four cards for eight GPUs; jobs on four GPUs of a few nodes each, so that jobs share cards. A collective moves
at the pace of its slowest card, on all of them; what is asked of a card beyond its speed is shared max-min fairly
(progressive filling). *Steady* jobs send less than they could all the time, *in bursts* all they can for a part of it.
The prediction sees what counters show before the new job begins: the mean rate of each card, and how many jobs use it
(*known*) or not (*unknown*: one). What is compared is the time of an all-reduce of 1 GiB, times that of idle cards.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from benchmarks.tables import markdown
from kopt.core.hardware.bandwidth import Collective
from kopt.core.hardware.node_topology import LinkType, NicAffinity, NodeTopology, TopologyGpu, TopologyLink, TopologyNic
from kopt.core.hardware.traffic import LinkTraffic
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.models.bandwidth.predictor import BandwidthQuestion
from kopt.models.registry.loading import SHIPPED
from kopt.topology.collective_cost import analytic
from kopt.topology.from_node import machine_of_node
from kopt.topology.graph import Machine
from kopt.topology.set_links import gpu_set
from kopt.topology.traffic import node_loads, slowest, under_traffic

_SEEDS, _CLUSTERS, _STATES = 5, 40, 40
_CARD_GBPS, _NODES = 50.0, 8
GIB = 1 << 30
_Card = tuple[int, int]


@dataclass(frozen=True)
class _Job:
    """``demand``: what it sends over each of its cards, or the part of the time in which it sends all it can."""

    gpus: tuple[int, ...]
    nodes: tuple[int, ...]
    demand: float

    @property
    def cards(self) -> frozenset[_Card]:
        return frozenset((node, gpu // 2) for node in self.nodes for gpu in self.gpus)


def main(_: Sequence[str] = ()) -> int:
    rows = []
    for bursts in (False, True):
        for known in (True, False):
            runs = [_run(seed, bursts=bursts, known=known) for seed in range(_SEEDS)]
            errors, unloaded, within, above = (np.array(part) for part in zip(*runs, strict=True))
            rows.append(
                (
                    "in bursts" if bursts else "steady",
                    "known" if known else "unknown",
                    f"{np.median(errors):.1%} ({errors.min():.1%} to {errors.max():.1%})",
                    f"{np.median(unloaded):.0%}",
                    f"{np.median(within):.0%} ({within.min():.0%})",
                    f"{np.median(above):.0%}",
                )
            )
    head = (
        "jobs send",
        "jobs per card",
        "median error (least and most of five seeds)",
        "error of taking cards for idle",
        "between low end and idle (worst seed)",
        "slower than the low end",
    )
    print(markdown(head, rows))
    return 0


def _run(seed: int, *, bursts: bool, known: bool) -> tuple[float, float, float, float]:
    """Medians of the errors with and without traffic, and shares within and beyond the ends."""
    draw, machine, model = random.Random(seed), _machine(), load_bandwidth(SHIPPED)
    errors, unloaded, within, above = [], [], [], []
    for _ in range(_CLUSTERS):
        jobs = [_job(draw) for _ in range(draw.randint(1, 6))]
        new = replace(_job(draw), demand=1.0)
        share = _share(draw, jobs, new, bursts=bursts)
        rates = _means(draw, jobs, bursts=bursts)
        plain = model.estimate(BandwidthQuestion(machine, new.gpus, Collective.ALL_REDUCE, GIB, len(new.nodes)))
        said = slowest(
            [
                under_traffic(plain, machine, node_loads(machine, _traffic(rates, jobs, node, known=known)))
                for node in new.nodes
            ]
        )
        truth = _times(machine, new, share)
        predicted = said.latency_us / plain.latency_us
        most = said.latency_high_us / plain.latency_high_us
        errors.append(abs(predicted / truth - 1))
        unloaded.append(abs(1 / truth - 1))
        within.append(1 - 1e-6 <= truth <= most * 1.001)
        above.append(truth > most * 1.001)
    busy = [error > 1e-6 for error in unloaded]
    part = [error for error, counts in zip(errors, busy, strict=True) if counts]
    idle = [error for error, counts in zip(unloaded, busy, strict=True) if counts]
    return float(np.median(part)), float(np.median(idle)), float(np.mean(within)), float(np.mean(above))


def _job(draw: random.Random) -> _Job:
    gpus = tuple(sorted(draw.sample(range(8), 4)))
    return _Job(gpus, tuple(draw.sample(range(_NODES), draw.randint(3, 5))), draw.uniform(0.05, 0.95))


def _rates(jobs: Sequence[tuple[_Job, float]]) -> dict[int, float]:
    """Of a card for every job that has so much to send, by its place: all rise together until a card is full."""
    rates = dict.fromkeys(range(len(jobs)), 0.0)
    rising = set(rates)
    while rising:
        left = {card: 1.0 for job, _ in jobs for card in job.cards}
        many = dict.fromkeys(left, 0)
        for number, (job, _) in enumerate(jobs):
            for card in job.cards:
                left[card] -= rates[number]
                many[card] += number in rising
        step = min(
            *(jobs[number][1] - rates[number] for number in rising),
            *(left[card] / many[card] for card in left if many[card]),
        )
        for number in rising:
            rates[number] += max(0.0, step)
        full = {card for card in left if many[card] and left[card] - many[card] * step < 1e-9}
        rising -= {
            number for number in rising if jobs[number][1] - rates[number] < 1e-9 or jobs[number][0].cards & full
        }
    return rates


def _share(draw: random.Random, jobs: Sequence[_Job], new: _Job, *, bursts: bool) -> float:
    """Of its cards that the new job gets, in the mean of the time."""
    if not bursts:
        return _rates([*((job, job.demand) for job in jobs), (new, 1.0)])[len(jobs)]
    got = []
    for _ in range(_STATES):
        sending = [(job, 1.0) for job in jobs if draw.random() < job.demand]
        got.append(_rates([*sending, (new, 1.0)])[len(sending)])
    return float(np.mean(got))


def _means(draw: random.Random, jobs: Sequence[_Job], *, bursts: bool) -> dict[_Card, float]:
    """What each card carries in the mean without the new job, as a share of its speed."""
    mean: dict[_Card, float] = {}
    states = [[(job, job.demand) for job in jobs]]
    if bursts:
        states = [[(job, 1.0) for job in jobs if draw.random() < job.demand] for _ in range(_STATES)]
    for state in states:
        rates = _rates(state)
        for number, (job, _) in enumerate(state):
            for card in job.cards:
                mean[card] = mean.get(card, 0.0) + rates[number] / len(states)
    return mean


def _traffic(rates: Mapping[_Card, float], jobs: Sequence[_Job], node: int, *, known: bool) -> list[LinkTraffic]:
    """What counters of a node's cards show."""
    return [
        LinkTraffic(
            f"mlx5_{card[1]}",
            min(1.0, rate) * _CARD_GBPS,
            sum(card in job.cards for job in jobs) if known else 1,
        )
        for card, rate in rates.items()
        if card[0] == node
    ]


def _times(machine: Machine, new: _Job, share: float) -> float:
    """Times the unloaded time, where every card gives it such a share."""
    loaded = replace(machine, card_shares=dict.fromkeys(machine.node.gpus, share))
    before, after = gpu_set(machine, new.gpus, len(new.nodes)), gpu_set(loaded, new.gpus, len(new.nodes))
    plain = analytic(before, Collective.ALL_REDUCE, GIB)
    return analytic(after, Collective.ALL_REDUCE, GIB, plain.algorithm).latency_us / plain.latency_us


def _machine() -> Machine:
    gpus = tuple(TopologyGpu(n, "NVIDIA H100 80GB HBM3", numa=n // 4) for n in range(8))
    links = tuple(TopologyLink(a, b, LinkType.NVLINK, 18) for a, b in combinations(range(8), 2))
    nics = tuple(TopologyNic(f"mlx5_{n}", gbit_per_s=8 * _CARD_GBPS, state="ACTIVE") for n in range(4))
    near = tuple(
        NicAffinity(gpu, f"mlx5_{nic}", LinkType.PIX if gpu // 2 == nic else LinkType.SYS)
        for gpu in range(8)
        for nic in range(4)
    )
    return machine_of_node(NodeTopology("n", gpus, links, nics, near, vendor="nvidia"))
