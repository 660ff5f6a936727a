"""What keeps a pod off nodes, one rule at a time, each checked by the function that reads whole pods."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, mapping, text, texts
from kopt.cluster.workloads.kueue.objects import Flavor
from kopt.cluster.workloads.kueue.queues import allows, label_keys
from kopt.cluster.workloads.node_selection import is_tolerated, matches_labels, runs_on
from kopt.controllers.overview.diagnosis.books import ClusterBooks
from kopt.core.scheduling.diagnosis import Binding
from kopt.policies.diagnosis import Rule
from kopt.policies.diagnosis.situation import Bools
from kopt.policies.placement.pool import Pool

TERMS = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_CONDITIONS = "node.kubernetes.io/"
_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_ANYTHING = ({"operator": "Exists"},)
_MOST_VALUES = 8


def rules_of(
    pod: Object, namespace: str, books: ClusterBooks, pool: Pool, flavors: Sequence[str] = ()
) -> tuple[Rule, ...]:
    """The rules of a pod (``metadata`` and ``spec``), by the rows of a pool. ``flavors``: those of its Kueue queue,
    whose tolerations its pods get on their nodes."""
    spec = mapping(pod, "spec")
    existing = [books.flavors[name] for name in flavors if name in books.flavors]
    rows = _Rows(books, pool)
    rules = [
        *_states(spec, rows),
        *_selectors(spec, rows, existing, books.flavors, flavors),
        *_affinities(spec, rows, existing, books.flavors, flavors),
        *_taints(spec, rows, existing),
        *_neighbours(pod, namespace, rows, books),
    ]
    return tuple(rule for rule in rules if rule.excluded.any() or rule.flavors)


class _Rows:
    """The nodes of a pool by row."""

    def __init__(self, books: ClusterBooks, pool: Pool) -> None:
        self._books, self._pool = books, pool

    def excluded(self, is_excluded: Callable[[Object], bool], keys: Iterable[str] = ()) -> Bools:
        """(rows,). What is asked may look at a node's taints, state and labels of ``keys``: nodes that are equal in
        these are asked once."""
        array: Bools = np.zeros(self._pool.state.rows, dtype=np.bool_)
        for node, rows in self._books.alike(self._pool, frozenset(keys)):
            if is_excluded(node):
                array |= rows
        return array

    def values(self, key: str) -> list[str]:
        """Of a label, that nodes have."""
        labels = (_labels(node) for node, _ in self._books.alike(self._pool, frozenset({key})))
        return sorted({str(each[key]) for each in labels if key in each})

    def taints(self) -> Iterator[Object]:
        for node, _ in self._books.alike(self._pool, frozenset()):
            yield from (taint for _, taint in items(node, "spec", "taints"))

    def names(self, excluded: Bools) -> str:
        names = [name for name, row in self._pool.state.index.items() if excluded[row]] if excluded.any() else []
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _labels(node: Object) -> Mapping[str, Any]:
    return mapping(node, "metadata", "labels")


def _states(spec: Mapping[str, Any], rows: _Rows) -> Iterator[Rule]:
    tolerations = [item for _, item in items(spec, "tolerations")]
    if not is_tolerated(_CORDON, tolerations):
        cordoned = rows.excluded(lambda node: at(node, "spec", "unschedulable") is True)
        yield Rule(Binding.CORDONED, rows.names(cordoned), cordoned, owned=False)

    def is_ill(node: Object) -> bool:
        states = (
            text(item, "status") for _, item in items(node, "status", "conditions") if text(item, "type") == "Ready"
        )
        taints = [
            taint
            for _, taint in items(node, "spec", "taints")
            if text(taint, "key").startswith(_CONDITIONS) and text(taint, "key") != _CORDON["key"]
        ]
        return any(state != "True" for state in states) or any(not is_tolerated(taint, tolerations) for taint in taints)

    ill = rows.excluded(is_ill)
    yield Rule(Binding.NOT_READY, rows.names(ill), ill, owned=False)


def _selectors(
    spec: Mapping[str, Any], rows: _Rows, existing: Sequence[Flavor], every: Mapping[str, Flavor], names: Sequence[str]
) -> Iterator[Rule]:
    keys = label_keys(names, every)
    for key, value in mapping(spec, "nodeSelector").items():

        def excluding(wanted: str, key: str = key) -> tuple[Bools, frozenset[str]]:
            # What flavours are told apart by, Kueue checks itself; else the label decides on each node.
            part = {"nodeSelector": {key: wanted}, "tolerations": list(_ANYTHING)}
            excluded = rows.excluded(lambda candidate: not runs_on(part, _labels(candidate), ()), [key])
            return excluded, frozenset(flavor.name for flavor in existing if not allows(flavor, part, keys))

        excluded, flavors = excluding(str(value))
        others = [other for other in rows.values(str(key)) if other != str(value)]
        values = {other: excluding(other) for other in others[:_MOST_VALUES]}
        yield Rule(Binding.NODE_SELECTOR, f"{key}={value}", excluded, flavors, values=values)


def _affinities(
    spec: Mapping[str, Any], rows: _Rows, existing: Sequence[Flavor], every: Mapping[str, Flavor], names: Sequence[str]
) -> Iterator[Rule]:
    """A term's expressions one by one where there is a single term, else all terms as a whole."""
    terms = [term for _, term in items(spec, *TERMS)]
    parts: list[tuple[str, list[Any]]] = []
    if len(terms) == 1:
        expressions = [item for _, item in items(terms[0], "matchExpressions")]
        parts = [(expression_name(item), [{"matchExpressions": [item]}]) for item in expressions]
    if terms and not parts:
        parts = [(f"of {len(terms)} terms", terms)]
    keys = label_keys(names, every)
    for name, several in parts:
        part = affinity_spec(several)
        named = {text(item, "key") for term in several for _, item in items(term, "matchExpressions")}
        excluded = rows.excluded(lambda node, part=part: not runs_on(part, _labels(node), ()), named)  # type: ignore[misc]
        flavors = frozenset(flavor.name for flavor in existing if not allows(flavor, part, keys))
        yield Rule(Binding.NODE_AFFINITY, name, excluded, flavors)


def expression_name(expression: Any) -> str:
    """``zone in a, b``."""
    values = ", ".join(texts(expression, "values"))
    operator = {"In": "in", "NotIn": "not in", "Exists": "exists", "DoesNotExist": "does not exist"}
    word = operator.get(text(expression, "operator"), text(expression, "operator"))
    return f"{text(expression, 'key')} {word} {values}".strip()


def affinity_spec(terms: list[Any]) -> Object:
    return {
        "affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}},
        "tolerations": list(_ANYTHING),
    }


def taint_name(taint: Any) -> str:
    """``team=a:NoSchedule``, as kubectl writes it."""
    key, value = text(taint, "key"), text(taint, "value")
    return f"{key}={value}:{text(taint, 'effect')}" if value else f"{key}:{text(taint, 'effect')}"


def _taints(spec: Mapping[str, Any], rows: _Rows, existing: Sequence[Flavor]) -> Iterator[Rule]:
    own = [item for _, item in items(spec, "tolerations")]
    listed: dict[str, Object] = {}
    for taint in (
        *rows.taints(),
        *(taint for flavor in existing for taint in flavor.taints),
    ):
        if not text(taint, "key").startswith(_CONDITIONS):
            listed.setdefault(taint_name(taint), taint)
    for name, taint in listed.items():
        if is_tolerated(taint, own):
            continue

        def is_excluded(node: Object, name: str = name, taint: Object = taint) -> bool:
            has = any(taint_name(other) == name for _, other in items(node, "spec", "taints"))
            tolerations = (item for flavor in existing if _is_of(node, flavor) for item in flavor.tolerations)
            return has and not is_tolerated(taint, list(tolerations))

        flavors = frozenset(
            flavor.name
            for flavor in existing
            if any(taint_name(other) == name for other in flavor.taints)
            and not is_tolerated(taint, list(flavor.tolerations))
        )
        keys = {key for flavor in existing for key in flavor.labels}
        yield Rule(Binding.TAINT, name, rows.excluded(is_excluded, keys), flavors)


def _is_of(node: Object, flavor: Flavor) -> bool:
    return flavor.labels.items() <= _labels(node).items()


def flavor_rows(books: ClusterBooks, pool: Pool, names: Iterable[str]) -> dict[str, Bools]:
    """The nodes of each flavour, (rows,); without those whose flavour names no label."""
    rows = _Rows(books, pool)
    flavors = (books.flavors[name] for name in names if name in books.flavors)
    return {
        flavor.name: rows.excluded(lambda node, flavor=flavor: _is_of(node, flavor), flavor.labels)  # type: ignore[misc]
        for flavor in flavors
        if flavor.labels
    }


def _neighbours(pod: Object, namespace: str, rows: _Rows, books: ClusterBooks) -> Iterator[Rule]:
    """Required affinity and anti-affinity to pods that are on nodes."""
    for kind, code in (("podAffinity", Binding.POD_AFFINITY), ("podAntiAffinity", Binding.POD_ANTI_AFFINITY)):
        for _, term in items(pod, "spec", "affinity", kind, _REQUIRED):
            domains = _domains_of(term, namespace, books)
            key = text(term, "topologyKey")
            near = rows.excluded(lambda node, key=key, domains=domains: _labels(node).get(key) in domains, [key])  # type: ignore[misc]
            if code is Binding.POD_ANTI_AFFINITY:
                yield Rule(code, _term_name(term), near)
            elif domains or not matches_labels(at(term, "labelSelector"), mapping(pod, "metadata", "labels")):
                # The first of pods that want to be near each other may go anywhere.
                yield Rule(code, _term_name(term), ~near)


def _domains_of(term: Any, namespace: str, books: ClusterBooks) -> set[str]:
    """The domains that have a pod which a term selects."""
    selector, key = at(term, "labelSelector"), text(term, "topologyKey")
    names, every = set(texts(term, "namespaces")), isinstance(at(term, "namespaceSelector"), dict)
    domains = set()
    for members in books.bound.values():
        for other, state in members:
            own = every or state.key[0] in (names or {namespace})
            if own and matches_labels(selector, mapping(other, "metadata", "labels")):
                value = _labels(books.nodes.get(state.node, {})).get(key)
                if value is not None:
                    domains.add(str(value))
    return domains


def _term_name(term: Any) -> str:
    labels = ", ".join(f"{key}={value}" for key, value in mapping(term, "labelSelector", "matchLabels").items())
    return f"{labels or 'pods'} by {text(term, 'topologyKey')}"
