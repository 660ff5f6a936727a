"""A change as JSON Patch operations on the manifest of the job that it is about."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import Path, at, items, mapping, text
from kopt.cluster.objects.json_patch import pointer
from kopt.cluster.objects.kaiwo_workloads import MAKERS
from kopt.cluster.workloads.kinds import BY_KEY
from kopt.cluster.workloads.kueue.reading import amount, requests_of
from kopt.cluster.workloads.requests.gpus import milli_of
from kopt.controllers.overview.diagnosis.rules import TERMS, expression_name
from kopt.controllers.overview.job import JobSnapshot
from kopt.core.scheduling.diagnosis import Change, ChangeKind
from kopt.core.units import MIB

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
Operation = Mapping[str, Any]


def patched(change: Change, job: JobSnapshot) -> Change:
    """With the operations that make it; none for what has no place in the manifest, such as waiting."""
    operations = tuple(_operations(change, job))
    return replace(change, patch=operations, about=job.root.label if operations else "")


def _operations(change: Change, job: JobSnapshot) -> Iterator[Operation]:
    root = job.root
    if root.resource in MAKERS:
        # Nothing of it reaches what it has made already.
        return
    if change.kind is ChangeKind.OTHER_QUEUE:
        path: Path = ("metadata", "labels", QUEUE_LABEL)
        yield {"op": "replace" if at(root.document, *path) else "add", "path": pointer(path), "value": change.after}
        return
    if change.kind is ChangeKind.FEWER_PODS:
        yield from _pods(change, root.document, root.resource.kind)
        return
    kind = BY_KEY.get((root.resource.group, root.resource.kind))
    paths = [pods.spec for pods in kind.pod_sets(root.document) if pods.spec is not None] if kind else []
    for path in paths:
        if edit := _EDITS.get(change.kind):
            yield from edit(change, path, mapping(root.document, *path))
        if change.rule and change.kind in (ChangeKind.FEWER_GPUS, ChangeKind.LESS_CPU, ChangeKind.LESS_MEMORY):
            # A pair: the rule goes, too.
            yield from _drop(change, path, mapping(root.document, *path))


def _pods(change: Change, document: Object, kind: str) -> Iterator[Operation]:
    if kind != "Job":
        return
    # The last is Volcano's.
    for field in ("parallelism", "completions", "minAvailable"):
        if at(document, "spec", field) is not None:
            yield {"op": "replace", "path": f"/spec/{field}", "value": int(change.after)}


def _cut(
    path: Path, spec: Mapping[str, Any], is_meant: Callable[[str], bool], before: int, after: int, unit: int
) -> Iterator[Operation]:
    """The first container that has so much to give gives the difference, in thousandths, written in units of ``unit``
    thousandths. Nothing where the pods of this template do not request ``before``: the change is about others."""
    total = sum(value for name, value in requests_of(spec).items() if is_meant(name))
    for index, item in items(spec, "containers") if total == before else ():
        blocks = [
            (block, str(name), amount(value))
            for block in ("requests", "limits")
            for name, value in items(item, "resources", block)
            if is_meant(str(name))
        ]
        # CPU and memory may be limited to more than is requested.
        parts = [each for each in blocks if milli_of(each[1], 1) or each[0] == blocks[0][0]]
        if parts and parts[0][2] > before - after:
            for block, name, value in parts:
                remaining, where = value - (before - after), (*path, "containers", index, "resources", block, name)
                suffix = {1: "m", 1000 * MIB: "Mi"}.get(unit, "")
                yield {"op": "replace", "path": pointer(where), "value": f"{remaining // unit}{suffix}"}
            return


def _gpus(change: Change, path: Path, spec: Mapping[str, Any]) -> Iterator[Operation]:
    before, after = 1000 * int(change.before), 1000 * int(change.after)
    yield from _cut(path, spec, lambda name: milli_of(name, 1) > 0, before, after, 1000)


def _cpu(change: Change, path: Path, spec: Mapping[str, Any]) -> Iterator[Operation]:
    yield from _cut(path, spec, lambda name: name == "cpu", amount(change.before), amount(change.after), 1)


def _memory(change: Change, path: Path, spec: Mapping[str, Any]) -> Iterator[Operation]:
    before, after = amount(change.before), amount(change.after)
    yield from _cut(path, spec, lambda name: name == "memory", before, after, 1000 * MIB)


def _tolerate(change: Change, path: Path, spec: Mapping[str, Any]) -> Iterator[Operation]:
    body, _, effect = change.rule.rpartition(":")
    key, equals, value = body.partition("=")
    toleration = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    toleration |= {"effect": effect}
    if isinstance(spec.get("tolerations"), list):
        yield {"op": "add", "path": pointer((*path, "tolerations")) + "/-", "value": toleration}
    else:
        yield {"op": "add", "path": pointer((*path, "tolerations")), "value": [toleration]}


def _value(change: Change, path: Path, spec: Mapping[str, Any]) -> Iterator[Operation]:
    key = change.rule.partition("=")[0]
    if key in mapping(spec, "nodeSelector"):
        yield {"op": "replace", "path": pointer((*path, "nodeSelector", key)), "value": change.after}


def _drop(change: Change, path: Path, spec: Mapping[str, Any]) -> Iterator[Operation]:
    """The selector, the expression or the term that the rule is."""
    for key, value in mapping(spec, "nodeSelector").items():
        if f"{key}={value}" == change.rule:
            yield {"op": "remove", "path": pointer((*path, "nodeSelector", key))}
            return
    terms = [(index, term) for index, term in items(spec, *TERMS)]
    if change.rule == f"of {len(terms)} terms":
        yield {"op": "remove", "path": pointer((*path, *TERMS[:-1]))}
        return
    for index, term in terms if len(terms) == 1 else ():
        expressions = [(number, item) for number, item in items(term, "matchExpressions")]
        for number, item in expressions:
            if expression_name(item) == change.rule:
                whole = (*path, *TERMS[:-1])
                single = (*path, *TERMS, index, "matchExpressions", number)
                # A term without expressions would match no node.
                yield {"op": "remove", "path": pointer(whole if len(expressions) == 1 else single)}
                return
    for kind in ("podAffinity", "podAntiAffinity"):
        where = (*path, "affinity", kind, TERMS[2])
        for index, term in items(spec, "affinity", kind, TERMS[2]):
            labels = ", ".join(f"{key}={value}" for key, value in mapping(term, "labelSelector", "matchLabels").items())
            if f"{labels or 'pods'} by {text(term, 'topologyKey')}" == change.rule:
                yield {"op": "remove", "path": pointer((*where, index))}
                return


_EDITS: Mapping[ChangeKind, Callable[[Change, Path, Mapping[str, Any]], Iterator[Operation]]] = {
    ChangeKind.FEWER_GPUS: _gpus,
    ChangeKind.LESS_CPU: _cpu,
    ChangeKind.LESS_MEMORY: _memory,
    ChangeKind.TOLERATE: _tolerate,
    ChangeKind.OTHER_VALUE: _value,
    ChangeKind.DROP_RULE: _drop,
}
