"""Annotations with structured content, and what is wrong with one that cannot be read.

Controllers that go by an annotation read it here. Where one has to go on without it, ``mapping_of`` is empty, and the
controller's informers say on the object what is wrong (``cluster.runtime.isolation``, by
``cluster.runtime.annotation_checks``).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, TypeVar

from kopt.cluster.objects.fields import mapping
from kopt.core.untrusted import UnreadableError, decode, decode_mapping

T = TypeVar("T")

INDICES_ANNOTATION = "kaiwo.ai/gpu-indices"
"""Which GPUs of its node a pod was given, in the order of the device plugin; the API server copies it from the
Binding to the pod."""
SCHEDULER_ANNOTATION = "kaiwo.ai/recommended-scheduler"
"""The scheduler that would fit a workload better, as the webhook advises."""
RECOMMENDED_POOLS_ANNOTATION = "kaiwo.ai/recommended-node-pools"
"""The node pools of those that a workload names that it would be limited to, as the webhook advises."""

Checks = Mapping[str, Callable[[dict[str, Any]], None]]
"""By an annotation's key what raises AnnotationError where it cannot be read on an object."""


class AnnotationError(UnreadableError):
    """An annotation that cannot be read. The message says what to do about it; ``annotation`` is its key."""

    def __init__(self, annotation: str, why: object, remedy: str = "Correct or remove it.") -> None:
        super().__init__(f"Annotation {annotation} cannot be read: {why}. {remedy}")
        self.annotation = annotation


class ForgedError(AnnotationError):
    """An annotation of which nothing proves that a controller of ours wrote it on this object."""

    def __init__(self, annotation: str) -> None:
        super().__init__(annotation, "forged")
        self.args = (
            f"Annotation {annotation} has no valid proof that a controller of kopt wrote it on this object: it was "
            "written, changed or copied by others, or sealed with a key that was replaced. It counts as absent. "
            "Remove it.",
        )


def json_of(annotations: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """The JSON object in an annotation; None where there is none. Raises AnnotationError."""
    text = annotations.get(key)
    if text is None:
        return None
    try:
        return decode_mapping(text)
    except UnreadableError as error:
        raise AnnotationError(key, error) from None


def mapping_of(annotations: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The JSON object in an annotation; empty where there is none that can be read."""
    try:
        return json_of(annotations, key) or {}
    except AnnotationError:
        return {}


def records_of(document: Mapping[str, Any], key: str, read: Callable[[dict[str, Any]], T], most: int) -> list[T]:
    """The first ``most`` entries of the list in an annotation of an object; empty where there is none. Raises
    AnnotationError."""
    text = mapping(document, "metadata", "annotations").get(key)
    if text is None:
        return []
    try:
        entries = decode(text)
        if not isinstance(entries, list):
            raise UnreadableError("not a list")
        return [_record(entry, read) for entry in entries[:most]]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise AnnotationError(key, error) from None


def _record(entry: object, read: Callable[[dict[str, Any]], T]) -> T:
    if not isinstance(entry, dict):
        raise UnreadableError("an entry that is no object")
    return read(entry)


def records_text(entries: Iterable[Mapping[str, Any]], most: int) -> str:
    """As ``records_of`` reads them."""
    return json.dumps(list(islice(entries, most)), separators=(",", ":"))
