"""The status of a MIGStrategy: what its nodes have and are to have, what waits, and what is left undone. Pure."""

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.reservation import ACCEPTED, condition
from kopt.cluster.objects.fields import items, text
from kopt.controllers.partitions.executors import SignedPlans
from kopt.controllers.partitions.reports import NodeReport, StrategyReport

MOST_NODES, MOST_UNDONE = 500, 50
_LONGEST = 300


def status_of(report: StrategyReport, acts: bool, now_s: float) -> Object:
    """``acts``: the strategy is carried out; else it is shown what would be done."""
    rows = [_node(each) for each in report.nodes]
    result: Object = {
        "observedGeneration": int(report.strategy.document["metadata"].get("generation") or 0),
        "waiting": sum(report.pending.values()),
        "demand": [
            {"profile": profile, "waiting": count, "planned": report.served.get(profile, 0)}
            for profile, count in sorted(report.pending.items())
        ],
        "nodes": rows[:MOST_NODES],
        "undone": [
            {"subject": each.subject, "reason": each.reason, "message": each.message[:_LONGEST]}
            for each in report.undone[:MOST_UNDONE]
        ],
        "conditions": [condition(report.strategy.document, ACCEPTED, *_word(report, acts), now_s)],
    }
    if len(rows) > MOST_NODES:
        result["nodesLeftOut"] = len(rows) - MOST_NODES
    return result


def _node(each: NodeReport) -> Object:
    row: Object = {
        "name": each.node.name,
        "executor": "" if each.executor is None else each.executor.name,
        "configuration": each.node.configuration,
        "actual": dict(sorted(each.actual.items())),
        "wanted": dict(sorted((each.actual if each.wanted is None else each.wanted.instances).items())),
        "reason": each.reason,
        "message": each.message[:_LONGEST],
    }
    return row | ({} if each.wanted is None else {"wantedConfiguration": each.wanted.name})


def _word(report: StrategyReport, acts: bool) -> tuple[bool, str, str]:
    if report.strategy.spec is None:
        return False, "Refused", report.strategy.error
    refused = [each for each in report.nodes if each.executor is None]
    authorities = [each for each in refused if each.reason == "TwoAuthorities"]
    if authorities:
        return False, "TwoAuthorities", "; ".join(each.message for each in authorities[:3])
    if not report.nodes:
        return False, "NoNodes", "No node has the labels of spec.nodeSelector."
    if len(refused) == len(report.nodes):
        return False, refused[0].reason, refused[0].message
    if not acts:
        return True, "OnlyObserved", "Nodes show what would be done; nothing is cut in this mode."
    if any(isinstance(each.executor, SignedPlans) for each in report.nodes):
        return True, "AwaitsSignature", "A person signs what its nodes show: kopt nodes plan, sign, apply."
    if not any(each.executor is not None and each.executor.cuts for each in report.nodes):
        return True, "CutOnDemand", "The driver of its nodes cuts on demand: only what claims get is selected."
    return True, "Accepted", "Idle nodes are cut as what waits needs it."


def accepted_of(strategy: Object) -> tuple[str, str]:
    """(reason, message) of the condition; empty before the first look."""
    for _, row in items(strategy, "status", "conditions"):
        if text(row, "type") == ACCEPTED:
            return text(row, "reason"), text(row, "message")
    return "", ""
