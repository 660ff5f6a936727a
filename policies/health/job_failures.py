"""Nodes on which jobs fail that do not fail elsewhere: a sequential test against the rate of the pool.

Counts are small: two failures of two jobs on a new node say little, and a ratio would say 100 %. Here a node's last
outcomes are weighed by a Bayes factor: how likely they are on a node that breaks jobs, whose rate of failures is
Beta(4, 2), against one of the pool's rate. Wald's and Ville's inequalities bound how often a healthy node ever reaches
1/alpha: at most with probability alpha, however often one looks. Taking the best of all starts among the last outcomes
(Shiryaev-Roberts and CUSUM do the like) finds a node that was well for long; alpha is divided by the number of starts.

What counts as an outcome is one per job and node, however often a controller restarts its pod there. A job that fails
on other nodes as well is at fault itself; of a job that spans nodes only the pod that failed first says anything; and
of a family of jobs that has ended well on no other node one failure counts.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from kopt.core.hardware.health import Outcome

WINDOW = 20
"""Outcomes of a node that are looked at, the newest."""
ALPHA = 1e-5
_A, _B = 4.0, 2.0
"""Of a node that breaks jobs: two of three fail there."""
_LEAST_FAILURES, _LEAST_FAMILIES = 3, 2
_LEAST_RATE, _PRIOR_JOBS = 0.02, 20.0
_AT_ONCE_S = 2.0


def pool_rate(outcomes: Iterable[Outcome]) -> float:
    """The share of jobs on nodes of the pool that fail, from above: with a prior, plus one standard deviation. Each
    node counts alike, so that one on which everything fails does not set the rate for the others."""
    by_node: dict[str, list[bool]] = defaultdict(list)
    for outcome in outcomes:
        by_node[outcome.node].append(outcome.failed)
    if not by_node:
        return 0.1
    shares = sorted((sum(failed) + 0.1 * 2) / (len(failed) + 2) for failed in by_node.values())
    middle = shares[len(shares) // 2]
    jobs = sum(map(len, by_node.values()))
    rate = (middle * jobs + 0.1 * _PRIOR_JOBS) / (jobs + _PRIOR_JOBS)
    return min(0.6, max(_LEAST_RATE, rate + math.sqrt(rate * (1 - rate) / (jobs + _PRIOR_JOBS))))


def relevant(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """One outcome per job and node, without failures that are the job's own; in order of time."""
    ordered = sorted(outcomes, key=lambda outcome: outcome.at_s)
    failed_on: dict[str, dict[str, float]] = defaultdict(dict)
    for outcome in ordered:
        if outcome.failed:
            failed_on[outcome.job].setdefault(outcome.node, outcome.at_s)
    result: dict[tuple[str, str], Outcome] = {}
    for outcome in ordered:
        key = outcome.job, outcome.node
        if outcome.failed and not _is_blamed(outcome, failed_on[outcome.job]):
            continue
        if key not in result or (outcome.failed and not result[key].failed):
            result[key] = outcome
    return _of_proven_families(sorted(result.values(), key=lambda outcome: outcome.at_s))


def _of_proven_families(outcomes: list[Outcome]) -> list[Outcome]:
    """Whoever starts what is broken again and again says one thing: of a family that has ended well on no other node
    one failure counts on each."""
    well: dict[str, set[str]] = defaultdict(set)
    for outcome in outcomes:
        if not outcome.failed:
            well[outcome.family or outcome.job].add(outcome.node)
    result, seen = [], set[tuple[str, str]]()
    for outcome in outcomes:
        family = outcome.family or outcome.job
        if outcome.failed and not well[family] - {outcome.node}:
            if (family, outcome.node) in seen:
                continue
            seen.add((family, outcome.node))
        result.append(outcome)
    return result


def _is_blamed(outcome: Outcome, nodes: Mapping[str, float]) -> bool:
    """Whether a failure may be the node's fault: the job failed nowhere else, or here first and there at once, as the
    pods of one job do when one of them goes."""
    others = {node: at_s for node, at_s in nodes.items() if node != outcome.node}
    first_s = nodes[outcome.node]
    return all(0 < at_s - first_s <= 60 * _AT_ONCE_S for at_s in others.values())


def log_factor(outcomes: list[bool], rate: float) -> float:
    """The natural logarithm of the Bayes factor for a node that breaks jobs, by the best start among the outcomes."""
    best, failures, number = 0.0, 0, 0
    for failed in reversed(outcomes[-WINDOW:]):
        number, failures = number + 1, failures + failed
        if failures < _LEAST_FAILURES:
            continue
        breaks = _log_beta(_A + failures, _B + number - failures) - _log_beta(_A, _B)
        ordinary = failures * math.log(rate) + (number - failures) * math.log(1 - rate)
        best = max(best, breaks - ordinary)
    return best


def failing_nodes(outcomes: Iterable[Outcome], alpha: float = ALPHA) -> Mapping[str, str]:
    """The nodes of one pool that break jobs, and why, in words."""
    counted = relevant(outcomes)
    rate = pool_rate(counted)
    by_node: dict[str, list[bool]] = defaultdict(list)
    families: dict[str, set[str]] = defaultdict(set)
    for outcome in counted:
        by_node[outcome.node].append(outcome.failed)
        if outcome.failed:
            families[outcome.node].add(outcome.family or outcome.job)
    needed = math.log(WINDOW / alpha)
    result = {}
    for node, failed in by_node.items():
        recent = failed[-WINDOW:]
        if log_factor(recent, rate) >= needed and len(families[node]) >= _LEAST_FAMILIES:
            result[node] = f"{sum(recent)} of its last {len(recent)} jobs failed; in the pool {rate:.0%} do"
    return result


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
