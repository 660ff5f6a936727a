"""The conditions in the status of an object, as anybody may have written them."""

from collections.abc import Mapping
from typing import Any

from kopt.cluster.objects.fields import items, text
from kopt.core.times import seconds_or_none


def condition(document: Any, kind: str) -> Mapping[str, Any]:
    """That of one type; empty where there is none."""
    result = items(document, "status", "conditions")
    return next((item for _, item in result if text(item, "type") == kind), {})


def is_true(condition: Mapping[str, Any]) -> bool:
    return text(condition, "status") == "True"


def turned_s(condition: Mapping[str, Any]) -> float | None:
    """When it last changed; None where it does not say."""
    return seconds_or_none(text(condition, "lastTransitionTime"))


def since_s(document: Any, kind: str) -> float | None:
    """Since when a condition is true; None while it is not, and where it does not say."""
    result = condition(document, kind)
    return turned_s(result) if is_true(result) else None
