"""Precision and recall of verdicts on injected faults, and healthy nodes that would be kept free (K17).

Weights, thresholds and the test of jobs were set on the seeds 0-9; the report is of other seeds. Beside them stand two
usual rules on the same weeks: any XID of the alert rule, and three hardware events within a day.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.health_weeks import COUNTED, GPUS, LOOK_S, WEEK_S, Shown, Week, week
from benchmarks.tables import markdown
from kopt.core.hardware.health import NODE, Entry, Evidence, Grade, Outcome, code_of
from kopt.formats.gpu_metrics.health import read_health
from kopt.policies.health import add, evaluate, failing_nodes, pool_rate
from kopt.policies.health.job_failures import ALPHA, WINDOW, log_factor

TUNED_ON, REPORTED = range(10), range(100, 112)
ALERTED = frozenset({48, 63, 64, 74, 79, 94, 95, 119, 120})
_TEST_EVERY, _CAREFUL, _KEPT_S = 2000, 0.7, 86400.0
NEEDED = math.log(WINDOW / ALPHA)


@dataclass
class Found:
    """When a node was condemned, by node; and of faults how many events had been shown by then."""

    at_s: dict[str, float] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)


@dataclass
class Node:
    series: dict[tuple[str, int, int], float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
    gpus: dict[str, Grade] = field(default_factory=dict)
    falls: float = 0.0
    looked_s: float = 0.0
    events: int = 0


def judged(found: Week) -> Found:
    """By the product's reader and policies, in the order in which things show."""
    result, nodes = Found(), defaultdict[str, Node](Node)
    stream: list[tuple[float, int, object]] = [(item.at_s, 0, item) for item in found.shown]
    stream += [(outcome.at_s, 1, (outcome, fault)) for outcome, fault in found.outcomes]
    stream.sort(key=lambda item: (item[0], item[1]))
    outcomes: list[Outcome] = []
    of_node, failing, rate = defaultdict[str, list[bool]](list), dict[str, str](), 0.05
    for number, (at_s, _, item) in enumerate(stream):
        if isinstance(item, Shown):
            name = item.node
            evidence = _evidence(nodes[name], item)
            nodes[name].events += item.fault
        else:
            assert isinstance(item, tuple)
            outcome, fault = item
            outcomes.append(outcome)
            ended = of_node[outcome.node]
            ended.append(outcome.failed)
            nodes[outcome.node].events += fault
            name = outcome.node
            # Whatever is left out of a node's failures, it has to stand out with all of them to fail the test.
            stands_out = outcome.failed and log_factor(ended[-WINDOW:], _CAREFUL * rate) >= NEEDED
            if stands_out or number % _TEST_EVERY == 0:
                outcomes = [each for each in outcomes if each.at_s >= at_s - _KEPT_S]
                failing, rate = dict(failing_nodes(outcomes)), pool_rate(outcomes)
            evidence = [Evidence("JOB_FAILURES", NODE, float(name in failing), at_s)]
        node = nodes[name]
        node.entries = add(node.entries, evidence)
        health = evaluate(node.entries, node.gpus, at_s)
        node.gpus = dict(health.gpus)
        for each in (name, *failing):
            condemned = health.grade is Grade.CONDEMNED if each == name else True
            if condemned and each not in result.at_s:
                result.at_s[each], result.events[each] = at_s, nodes[each].events
    return result


def _evidence(node: Node, item: Shown) -> list[Evidence]:
    if item.series == "restart":
        # Counters begin anew.
        node.series = dict.fromkeys(node.series, 0.0)
        return []
    if item.series == "falls":
        node.falls += 1
        # As a link's first fall is read from its NodeTopology, and each one after that.
        return [
            Evidence("LINK_FLAP" if node.falls > 1 else "LINK_DEGRADED", NODE, amount, item.at_s) for amount in (1, 0)
        ]
    key = item.series, item.gpu, item.xid
    labels = {"Hostname": "n", "gpu": str(item.gpu)} | ({"xid": str(item.xid)} if item.xid else {})
    if item.grows and key not in node.series and item.series != COUNTED:
        # Counters are there from the beginning.
        node.counters.update(read_health([(item.series, labels, 0.0)], {}, 0.0, 0.0).counters.get("n", {}))
    node.series[key] = node.series.get(key, 0.0) + item.value if item.grows else item.value
    readings = read_health([(item.series, labels, node.series[key])], {"n": node.counters}, item.at_s, LOOK_S)
    node.counters.update(readings.counters.get("n", {}))
    return readings.evidence.get("n", [])


def by_alert(found: Week) -> Found:
    """Any XID of the alert rule, and nothing else."""
    return _by_count(found, lambda item: (item.xid or int(item.value)) in ALERTED and "XID" in item.series, 1)


def by_count(found: Week) -> Found:
    """Three events of hardware within a day."""
    return _by_count(found, lambda item: item.series not in ("restart",) and not _is_applications(item), 3)


def _is_applications(item: Shown) -> bool:
    return bool(item.xid) and code_of(f"XID_{item.xid}").weight == 0


def _by_count(found: Week, counts, needed: int) -> Found:  # type: ignore[no-untyped-def]
    result, seen, events = Found(), defaultdict[str, list[float]](list), defaultdict[str, int](int)
    for item in found.shown:
        events[item.node] += item.fault
        if counts(item):
            seen[item.node] = [at_s for at_s in seen[item.node] if at_s > item.at_s - _KEPT_S] + [item.at_s]
            if len(seen[item.node]) >= needed and item.node not in result.at_s:
                result.at_s[item.node], result.events[item.node] = item.at_s, events[item.node]
    return result


@dataclass
class Score:
    """``late``: condemned, but after more than ten events and ten minutes."""

    right: int = 0
    late: int = 0
    missed: int = 0
    false: int = 0
    minutes: list[float] = field(default_factory=list)
    of_family: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))

    def take(self, found: Week, grades: Found) -> None:
        for name, (onset_s, family) in found.faults.items():
            shows = any(item.fault and item.node == name for item in found.shown) or any(
                fault and outcome.node == name for outcome, fault in found.outcomes
            )
            at_s = grades.at_s.get(name)
            if at_s is not None and at_s < onset_s:
                self.false += 1
                continue
            in_time = at_s is not None and (at_s - onset_s <= 600 or grades.events[name] <= 10)
            if at_s is None and not _had_ten(found, name):
                # The week ended before it had shown itself ten times.
                continue
            self.right += in_time
            self.late += at_s is not None and not in_time
            self.missed += at_s is None and shows
            self.of_family[family].append(in_time)
            if at_s is not None:
                self.minutes.append((at_s - onset_s) / 60)
        self.false += sum(name not in found.faults for name in grades.at_s)

    @property
    def precision(self) -> float:
        return (self.right + self.late) / max(1, self.right + self.late + self.false)

    @property
    def recall(self) -> float:
        return self.right / max(1, self.right + self.late + self.missed)


def _had_ten(found: Week, name: str) -> bool:
    shown = sum(item.fault and item.node == name for item in found.shown)
    failed = sum(fault and outcome.node == name for outcome, fault in found.outcomes)
    return shown + failed >= 10 or found.faults[name][1] in ("fatal XID", "row remapping", "RAS")


def main(arguments: Sequence[str] = ()) -> int:
    seeds = TUNED_ON if "tuned" in arguments else REPORTED
    rules = {"kopt": judged, "any alerted XID": by_alert, "three events a day": by_count}
    scores = {name: Score() for name in rules}
    for seed in seeds:
        found = week(seed)
        for name, rule in rules.items():
            scores[name].take(found, rule(found))
    rows = [
        (
            name,
            f"{score.precision:.3f}",
            f"{score.recall:.3f}",
            f"{score.late}",
            f"{score.missed}",
            f"{score.false / len(seeds):.2f}",
            f"{median(score.minutes):.0f}" if score.minutes else "–",
        )
        for name, score in scores.items()
    ]
    heads = ("rule", "precision", "recall in time", "late", "missed", "healthy condemned per week", "minutes, median")
    print(f"{len(seeds)} weeks of 120 nodes with {GPUS} GPUs, {WEEK_S / 86400:.0f} days each\n")
    print(markdown(heads, rows))
    families = scores["kopt"].of_family
    print(
        markdown(
            ("family", "faults", "in time"),
            [(name, str(len(hits)), f"{sum(hits) / len(hits):.2f}") for name, hits in sorted(families.items())],
        )
    )
    kopt = scores["kopt"]
    return 0 if kopt.precision >= 0.95 and kopt.recall >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
