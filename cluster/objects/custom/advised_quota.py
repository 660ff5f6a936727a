"""Quotas of a KaiwoQueue that were written on advice, and the annotation that gives back those from before."""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.fields import items, mapping, text
from kopt.core.scheduling.queue_tree import DEFAULT_POOL
from kopt.core.units import UnitError, format_thousandths, parse_thousandths
from kopt.core.untrusted import UnreadableError, decode_mapping

ANNOTATION = "kaiwo.ai/quota-before"
"""JSON: by ``POOL/RESOURCE`` the quota ``before`` any advice, as it was written, and the one that was ``advised``."""
Location = tuple[str, str]
"""(pool, resource)."""


@dataclass(frozen=True)
class Restored:
    """``kept`` are quotas that somebody has changed since; those stay."""

    document: Object
    restored: tuple[Location, ...]
    kept: tuple[Location, ...]
    grows: int = 0
    """By so many thousandths its quotas together."""

    @property
    def sentence(self) -> str:
        """What became of it."""
        restored = ", ".join("/".join(each) for each in self.restored)
        kept = ", ".join("/".join(each) for each in self.kept)
        parts = [f"given back: {restored}"] if restored else []
        return "; ".join([*parts, *([f"changed since, left as it is: {kept}"] if kept else [])])


def with_quotas(document: Object, quotas: Mapping[Location, int]) -> Object:
    """The object with these quotas, in thousandths, and what they were before; the first advice's before is kept.

    Raises KeyError for a quota that the queue does not have, AnnotationError where the annotation cannot be read.
    """
    result = copy.deepcopy(document)
    shares, before = dict(_shares(result)), read_before(document)
    for location, amount in quotas.items():
        share, key = shares[location], "/".join(location)
        earlier = before.get(key)
        # What somebody wrote after the last advice is what undoing has to give back.
        is_ours = earlier is not None and _same(share["quota"], earlier["advised"])
        original = earlier["before"] if earlier is not None and is_ours else share["quota"]
        share["quota"] = _written(amount)
        before[key] = {"before": original, "advised": share["quota"]}
    _annotate(result, before)
    return result


def without_advice(document: Object) -> Restored | None:
    """The object with its quotas from before; None where none was written on advice. Raises AnnotationError."""
    before = read_before(document)
    if not before:
        return None
    result, restored, kept, grows = copy.deepcopy(document), [], [], 0
    shares = dict(_shares(result))
    for key, row in before.items():
        pool, _, resource = key.partition("/")
        share = shares.get((pool, resource))
        if share is not None and _same(share.get("quota"), row["advised"]):
            grows += parse_thousandths(row["before"]) - parse_thousandths(row["advised"])
            share["quota"] = row["before"]
            restored.append((pool, resource))
        else:
            kept.append((pool, resource))
    _annotate(result, {})
    return Restored(result, tuple(restored), tuple(kept), grows)


def read_before(document: Object) -> dict[str, Mapping[str, Any]]:
    """The annotation; empty where there is none. Raises AnnotationError."""
    written = text(document, "metadata", "annotations", ANNOTATION)
    if not written:
        return {}
    try:
        result = decode_mapping(written)
        for row in result.values():
            for name in ("before", "advised"):
                parse_thousandths(row[name])
    except (UnreadableError, UnitError, KeyError, TypeError) as error:
        raise AnnotationError(ANNOTATION, error) from error
    return result


def _shares(document: Object) -> Iterator[tuple[Location, dict[str, Any]]]:
    """What the spec says of each resource, to be changed in place."""
    spec = mapping(document, "spec")
    rows = [(text(row, "name"), mapping(row, "resources")) for _, row in items(spec, "pools")]
    for pool, resources in rows or [(DEFAULT_POOL, mapping(spec, "resources"))]:
        for resource, share in resources.items():
            if isinstance(share, dict):
                yield (pool, resource), share


def _same(first: Any, other: Any) -> bool:
    try:
        return parse_thousandths(first) == parse_thousandths(other)
    except UnitError:
        return False


def _written(amount: int) -> int | str:
    quantity = format_thousandths(amount)
    return int(quantity) if quantity.isdigit() else quantity


def _annotate(document: Object, before: Mapping[str, Mapping[str, Any]]) -> None:
    annotations = document["metadata"].setdefault("annotations", {})
    annotations.pop(ANNOTATION, None)
    if before:
        annotations[ANNOTATION] = json.dumps(before, sort_keys=True)
