"""Which pairs are slow, and which node is to blame.

A pair is compared with pairs of the same kind (hardware, software, collective, distance of the nodes): the logarithm of
its bandwidth with their median and median absolute deviation. As a sick node slows down all of its pairs, the yardstick
is taken from nodes that are not below the others themselves; up to just under half of the nodes may be sick.

A node is blamed when most of its pairs are slow. Nodes are blamed one by one, the worst first, and the pairs of a
blamed node no longer count against other nodes, so the partners of a sick node stay healthy. Where everything is slow
there is nothing to compare with.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass

from kopt.core.hardware.pairwise import Health, Pair


@dataclass(frozen=True)
class HealthSettings:
    """Thresholds for slow pairs and nodes."""

    share: float = 0.85
    """A pair that reaches this share of the median is healthy, however alike the others are."""
    deviations: float = 5.0
    """So is one within this many robust standard deviations of it."""
    least_pairs: int = 5
    """With fewer pairs of a kind they are not evaluated."""
    least_of_node: int = 2
    """Slow or failed pairs required to blame a node."""


@dataclass(frozen=True)
class Result:
    """One measurement; bandwidths of equal ``kind`` are comparable; ``gigabytes_per_s`` is None for a failed test."""

    nodes: Pair
    collective: str
    kind: Hashable
    gigabytes_per_s: float | None


@dataclass(frozen=True)
class HealthEvaluation:
    """``reason`` is one sentence with figures; empty for healthy results and where there is nothing to compare."""

    health: Health = Health.HEALTHY
    reason: str = ""


@dataclass(frozen=True)
class Evaluation:
    """Evaluations of the pairs in the order of the results, and of every node in them."""

    pairs: tuple[HealthEvaluation, ...]
    nodes: Mapping[str, HealthEvaluation]


@dataclass(frozen=True)
class _Yardstick:
    """What pairs of a kind reach: the median of ``count`` pairs, and the share of it below which a pair is slow."""

    median: float
    count: int
    threshold: float


@dataclass(frozen=True)
class _Vote:
    """``share`` of the median; None for a failed test."""

    result: Result
    bad: bool
    share: float | None
    median: float | None


def evaluate(results: Sequence[Result], settings: HealthSettings | None = None) -> Evaluation:
    """Evaluates the pairs first, then the nodes by their pairs."""
    rules = settings or HealthSettings()
    of_kind: dict[Hashable, list[Result]] = defaultdict(list)
    for result in results:
        if result.gigabytes_per_s:
            of_kind[result.kind].append(result)
    yardsticks = {
        kind: _yardstick(matches, rules) for kind, matches in of_kind.items() if len(matches) >= rules.least_pairs
    }
    votes = [_vote(result, yardsticks.get(result.kind)) for result in results]
    pairs = tuple([_of_pair(vote, yardsticks.get(vote.result.kind)) for vote in votes])
    nodes = {name: HealthEvaluation() for result in results for name in result.nodes}
    return Evaluation(pairs, nodes | _named(votes, rules))


def _yardstick(results: Sequence[Result], rules: HealthSettings) -> _Yardstick:
    of_node: dict[str, list[float]] = defaultdict(list)
    logs = [(result.nodes, math.log(result.gigabytes_per_s or 1.0)) for result in results]
    for nodes, value in logs:
        for name in nodes:
            of_node[name].append(value)
    scores = {name: statistics.median(matches) for name, matches in of_node.items()}
    floor = statistics.median(scores.values()) + math.log(rules.share)
    sound = [value for nodes, value in logs if all(scores[name] >= floor for name in nodes)]
    values = sound if len(sound) >= 2 else [value for _, value in logs]
    median = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - median) for value in values)
    threshold = min(rules.share, math.exp(-rules.deviations * spread))
    return _Yardstick(math.exp(median), len(results), threshold)


def _vote(result: Result, yardstick: _Yardstick | None) -> _Vote:
    """A completed test without comparable others counts as healthy."""
    if result.gigabytes_per_s is None:
        return _Vote(result, True, None, yardstick.median if yardstick else None)
    if yardstick is None:
        return _Vote(result, False, None, None)
    share = result.gigabytes_per_s / yardstick.median
    return _Vote(result, share < yardstick.threshold, share, yardstick.median)


def _of_pair(vote: _Vote, yardstick: _Yardstick | None) -> HealthEvaluation:
    if not vote.bad:
        return HealthEvaluation()
    if vote.share is None or yardstick is None:
        return HealthEvaluation(Health.FAILED)
    comparison = f"{vote.result.gigabytes_per_s:.3g} GB/s is {vote.share:.2f} of the {yardstick.median:.3g} GB/s that"
    return HealthEvaluation(
        Health.SLOW, f"{comparison} {vote.result.collective} reaches between such nodes ({yardstick.count} pairs)"
    )


def _named(votes: Sequence[_Vote], rules: HealthSettings) -> dict[str, HealthEvaluation]:
    """Nodes that are worse than their partners, the worst first."""
    of_node: dict[str, list[_Vote]] = defaultdict(list)
    for vote in votes:
        for name in vote.result.nodes:
            of_node[name].append(vote)
    named: dict[str, HealthEvaluation] = {}
    while result := _worst(of_node, named.keys(), rules):
        named[result] = _of_node(of_node[result])
    # The remaining pairs have to be mostly healthy, otherwise these nodes were not the cause.
    rest = [vote for vote in votes if named.keys().isdisjoint(vote.result.nodes)]
    sound = sum(not vote.bad for vote in rest)
    return named if rest and sound > len(rest) - sound else {}


def _worst(of_node: Mapping[str, list[_Vote]], without: Set[str], rules: HealthSettings) -> str | None:
    ranks = []
    for name, votes in of_node.items():
        remaining = [vote for vote in votes if set(vote.result.nodes).isdisjoint(without)]
        bad = [vote for vote in remaining if vote.bad]
        if len(bad) >= rules.least_of_node and 2 * len(bad) > len(remaining):
            loss = statistics.mean(1 - (vote.share or 0.0) for vote in bad)
            ranks.append((len(bad) / len(remaining), len(bad), loss, name))
    return max(ranks)[-1] if ranks else None


def _of_node(votes: Sequence[_Vote]) -> HealthEvaluation:
    bad = [vote for vote in votes if vote.bad]
    failed = [vote for vote in bad if vote.share is None]
    partners = len({vote.result.nodes for vote in votes})
    collectives = " and ".join(sorted({vote.result.collective for vote in bad}))
    if 2 * len(failed) > len(bad):
        return HealthEvaluation(
            Health.FAILED, f"{collectives} with {_pair_count(failed)} of {partners} nodes did not complete"
        )
    slow = [vote for vote in bad if vote.share is not None]
    share = statistics.median(vote.share or 0.0 for vote in slow)
    medians = [vote.median for vote in slow if vote.median is not None]
    comparison = (
        f"{collectives} with {_pair_count(slow)} of {partners} nodes reaches {share:.2f} of what such pairs reach"
    )
    return HealthEvaluation(Health.SLOW, f"{comparison} (median {statistics.median(medians):.3g} GB/s)")


def _pair_count(votes: Sequence[_Vote]) -> int:
    return len({vote.result.nodes for vote in votes})
