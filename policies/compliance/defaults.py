"""Defaults as mutations: what a pod says itself stays."""

from collections.abc import Mapping
from typing import Any

from kopt.core.workload.compliance import Defaults
from kopt.policies.compliance.expressions import both, literal, mapped


def mutations(defaults: Defaults, guard: str = "") -> list[dict[str, Any]]:
    """One JSON Patch for each place that gets defaults. ``guard`` is CEL that has to hold as well."""
    places = (
        ("object.metadata", "labels", defaults.labels),
        ("object.metadata", "annotations", defaults.annotations),
        ("object.spec", "nodeSelector", defaults.node_selector),
    )
    return [
        {"patchType": "JSONPatch", "jsonPatch": {"expression": _patch(owner, part, values, guard)}}
        for owner, part, values in places
        if values
    ]


def _patch(owner: str, part: str, values: Mapping[str, str], guard: str) -> str:
    path = f"{owner}.{part}".removeprefix("object").replace(".", "/")
    target = f"{owner}.{part}"
    whole = f"[JSONPatch{{op: 'add', path: {literal(path)}, value: {mapped(values)}}}]"
    single = " + ".join(_single(target, path, key, value) for key, value in sorted(values.items()))
    patch = f"has({target}) ? ({single}) : {whole}"
    return f"{both([guard])} ? ({patch}) : []" if guard else patch


def _single(target: str, path: str, key: str, value: str) -> str:
    escaped = key.replace("~", "~0").replace("/", "~1")
    patch = f"[JSONPatch{{op: 'add', path: {literal(f'{path}/{escaped}')}, value: {literal(value)}}}]"
    return f"({literal(key)} in {target} ? [] : {patch})"
