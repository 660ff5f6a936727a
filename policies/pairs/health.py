"""Which pairs are slow, and which node is to blame.

A pair is held against pairs of the same kind (hardware, software, collective, how near the nodes are): its logarithm of
bandwidth against their median and median absolute deviation. As a sick node slows all of its pairs, the yardstick is
taken from nodes that are not below the others themselves; up to just under half of the nodes may be sick.

A node is named when most of its pairs are slow. Nodes are named one by one, the worst first, and its pairs then count
against nobody else: so the partners of a sick node stay healthy. Where everything is slow there is nothing to compare.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass

from kopt.core.pairs import Health, Pair


@dataclass(frozen=True)
class HealthSettings:
    """How much less is slow."""

    share: float = 0.85
    """A pair that reaches this share of the median is healthy, however alike the others are."""
    deviations: float = 5.0
    """And one within so many robust standard deviations of it."""
    least_pairs: int = 5
    """With fewer of a kind there is no verdict."""
    least_of_node: int = 2
    """Slow or failed pairs that it takes to name a node."""


@dataclass(frozen=True)
class Result:
    """One measurement; ``kind`` is equal where bandwidths can be compared, ``gigabytes_per_s`` None for a failure."""

    nodes: Pair
    collective: str
    kind: Hashable
    gigabytes_per_s: float | None


@dataclass(frozen=True)
class Verdict:
    """``reason`` is one sentence with figures; empty for what is healthy, or cannot be told."""

    health: Health = Health.HEALTHY
    reason: str = ""


@dataclass(frozen=True)
class Judgement:
    """Verdicts in the order of the results, and of every node that was in one."""

    pairs: tuple[Verdict, ...]
    nodes: Mapping[str, Verdict]


@dataclass(frozen=True)
class _Yardstick:
    """What pairs of a kind reach: the median of ``count``, and below which share of it a pair is slow."""

    median: float
    count: int
    threshold: float


@dataclass(frozen=True)
class _Vote:
    """``share`` of the median; None for a failure."""

    result: Result
    bad: bool
    share: float | None
    median: float | None


def judge(results: Sequence[Result], settings: HealthSettings | None = None) -> Judgement:
    """Pairs first, then the nodes by them."""
    rules = settings or HealthSettings()
    of_kind: dict[Hashable, list[Result]] = defaultdict(list)
    for one in results:
        if one.gigabytes_per_s:
            of_kind[one.kind].append(one)
    yardsticks = {kind: _yardstick(found, rules) for kind, found in of_kind.items() if len(found) >= rules.least_pairs}
    votes = [_vote(one, yardsticks.get(one.kind)) for one in results]
    pairs = tuple([_of_pair(vote, yardsticks.get(vote.result.kind)) for vote in votes])
    nodes = {name: Verdict() for one in results for name in one.nodes}
    return Judgement(pairs, nodes | _named(votes, rules))


def _yardstick(results: Sequence[Result], rules: HealthSettings) -> _Yardstick:
    of_node: dict[str, list[float]] = defaultdict(list)
    logs = [(one.nodes, math.log(one.gigabytes_per_s or 1.0)) for one in results]
    for nodes, value in logs:
        for name in nodes:
            of_node[name].append(value)
    scores = {name: statistics.median(found) for name, found in of_node.items()}
    floor = statistics.median(scores.values()) + math.log(rules.share)
    sound = [value for nodes, value in logs if all(scores[name] >= floor for name in nodes)]
    values = sound if len(sound) >= 2 else [value for _, value in logs]
    median = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - median) for value in values)
    threshold = min(rules.share, math.exp(-rules.deviations * spread))
    return _Yardstick(math.exp(median), len(results), threshold)


def _vote(result: Result, yardstick: _Yardstick | None) -> _Vote:
    """What has come to its end and cannot be held against others counts as sound."""
    if result.gigabytes_per_s is None:
        return _Vote(result, True, None, yardstick.median if yardstick else None)
    if yardstick is None:
        return _Vote(result, False, None, None)
    share = result.gigabytes_per_s / yardstick.median
    return _Vote(result, share < yardstick.threshold, share, yardstick.median)


def _of_pair(vote: _Vote, yardstick: _Yardstick | None) -> Verdict:
    if not vote.bad:
        return Verdict()
    if vote.share is None or yardstick is None:
        return Verdict(Health.FAILED)
    told = f"{vote.result.gigabytes_per_s:.3g} GB/s is {vote.share:.2f} of the {yardstick.median:.3g} GB/s that"
    return Verdict(Health.SLOW, f"{told} {vote.result.collective} reaches between such nodes ({yardstick.count} pairs)")


def _named(votes: Sequence[_Vote], rules: HealthSettings) -> dict[str, Verdict]:
    """Nodes that are worse than their partners, the worst first."""
    of_node: dict[str, list[_Vote]] = defaultdict(list)
    for vote in votes:
        for name in vote.result.nodes:
            of_node[name].append(vote)
    named: dict[str, Verdict] = {}
    while found := _worst(of_node, named.keys(), rules):
        named[found] = _of_node(found, of_node[found])
    # What is left has to hold among itself, or it was not these nodes.
    rest = [vote for vote in votes if named.keys().isdisjoint(vote.result.nodes)]
    sound = sum(not vote.bad for vote in rest)
    return named if rest and sound > len(rest) - sound else {}


def _worst(of_node: Mapping[str, list[_Vote]], without: Set[str], rules: HealthSettings) -> str | None:
    ranks = []
    for name, votes in of_node.items():
        left = [one for one in votes if set(one.result.nodes).isdisjoint(without)]
        bad = [one for one in left if one.bad]
        if len(bad) >= rules.least_of_node and 2 * len(bad) > len(left):
            lost = statistics.mean(1 - (one.share or 0.0) for one in bad)
            ranks.append((len(bad) / len(left), len(bad), lost, name))
    return max(ranks)[-1] if ranks else None


def _of_node(name: str, votes: Sequence[_Vote]) -> Verdict:
    bad = [vote for vote in votes if vote.bad]
    failed = [vote for vote in bad if vote.share is None]
    partners = len({vote.result.nodes for vote in votes})
    collectives = " and ".join(sorted({vote.result.collective for vote in bad}))
    if 2 * len(failed) > len(bad):
        return Verdict(
            Health.FAILED, f"{collectives} with {_pairs(failed)} of {partners} nodes did not come to its end"
        )
    slow = [vote for vote in bad if vote.share is not None]
    share = statistics.median(vote.share or 0.0 for vote in slow)
    medians = [vote.median for vote in slow if vote.median is not None]
    told = f"{collectives} with {_pairs(slow)} of {partners} nodes reaches {share:.2f} of what such pairs reach"
    return Verdict(Health.SLOW, f"{told} (median {statistics.median(medians):.3g} GB/s)")


def _pairs(votes: Sequence[_Vote]) -> int:
    return len({vote.result.nodes for vote in votes})
