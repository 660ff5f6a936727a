"""What is said of a node's health: by its NodeHealth, and by whoever wrote taints, conditions and rules for devices."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.holds.device_taint import GPU_ANNOTATION
from kopt.cluster.holds.hold import UNDO_ANNOTATION, undo_of
from kopt.cluster.holds.node_sharing import PROPOSAL, read_sharing
from kopt.cluster.holds.node_taint import MARK_LABEL, TAINT_KEY, our_condition
from kopt.cluster.objects.custom.node_health import record_of
from kopt.cluster.objects.fields import items, mapping, text
from kopt.core.scheduling.gpu_map import NodeStanding, Statement

OF_GPUS = re.compile(r"gpu|xid|nvlink|nvswitch|infiniband|accelerat", re.IGNORECASE)
"""Conditions that speak of GPUs, by their type: ours, NVSentinel's, node-problem-detector's, those of cloud agents."""
KOPT, KOPT_SHARING = "kopt health", "kopt sharing"
NODE_ANNOTATIONS = (PROPOSAL, UNDO_ANNOTATION)
"""Annotations of nodes that statements are read from."""
_OF_KUBERNETES = "node.kubernetes.io/"
_LONGEST = 300


def standing_of(document: Object) -> NodeStanding:
    """Of a NodeHealth. Nothing in it makes this raise."""
    record = record_of(document)
    entries = tuple(sorted(record.entries.values(), key=lambda entry: (entry.gpu, entry.code)))
    health = record.health
    return NodeStanding(health.grade, health.score, record.mode, record.since_s, dict(health.gpus), entries)


def statements_of(node: Object, rules: Iterable[Object] = ()) -> tuple[Statement, ...]:
    """Taints and conditions of a Node, the DeviceTaintRules for devices of its pool, and how its GPUs are shared in
    another way than its operators chose, or should be."""
    return (*_taints(node), *_conditions(node), *map(_rule, rules), *_sharing(node))


def pool_of_rule(rule: Object) -> str:
    """The pool of devices that a rule is for, by drivers the node's name; empty for one that names none."""
    return text(rule, "spec", "deviceSelector", "pool")


def _taints(node: Object) -> Iterator[Statement]:
    for _, taint in items(node, "spec", "taints"):
        key = text(taint, "key")
        by = KOPT if key == TAINT_KEY else "Kubernetes" if key.startswith(_OF_KUBERNETES) else key.partition("/")[0]
        yield Statement("", by[:80], f"taint {_taint(taint)}")


def _conditions(node: Object) -> Iterator[Statement]:
    ours = our_condition(node)
    for _, item in items(node, "status", "conditions"):
        kind = text(item, "type")
        if OF_GPUS.search(kind):
            by = KOPT if item is ours else text(item, "reason") or "unknown"
            content = text(item, "message") or text(item, "reason")
            yield Statement("", by[:80], f"condition {kind[:80]}={text(item, 'status')[:8]}: {content[:_LONGEST]}")


def _sharing(node: Object) -> Iterator[Statement]:
    if proposal := text(node, "metadata", "annotations", PROPOSAL):
        yield Statement("", KOPT_SHARING, proposal[:_LONGEST])
    hold = read_sharing(undo_of(node))
    if hold is not None and hold.label != hold.own:
        yield Statement("", KOPT_SHARING, f"GPUs shared as {hold.label} in place of {hold.own} ({hold.phase})")


def _rule(rule: Object) -> Statement:
    selector, name = mapping(rule, "spec", "deviceSelector"), text(rule, "metadata", "name")
    is_ours = bool(text(rule, "metadata", "labels", MARK_LABEL))
    device = text(selector, "device") or "every device"
    about = f"{device[:80]} of {text(selector, 'driver')[:80] or 'any driver'}"
    by = KOPT if is_ours else f"DeviceTaintRule {name[:80]}"
    gpu = text(rule, "metadata", "annotations", GPU_ANNOTATION)[:64] if is_ours else ""
    return Statement(gpu, by, f"taint of {about}: {_taint(mapping(rule, 'spec', 'taint'))}")


def _taint(taint: Any) -> str:
    value = text(taint, "value")
    return f"{text(taint, 'key')[:120]}{f'={value[:120]}' if value else ''}:{text(taint, 'effect')[:20]}"
