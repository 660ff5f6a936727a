"""Leaves out of sentences and documents what names workloads of namespaces that their reader may not see.

The answer about a workload is made of the whole cluster, as what waits in another namespace may be what is ahead of it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")
ELSEWHERE = "a workload of another namespace"
_NAME = re.compile(r"(?<![\w./-])([a-z0-9][a-z0-9-]{0,62})/([a-z0-9][a-z0-9.-]{0,252})")
"""``namespace/name`` as Kubernetes allows them; a namespace has no dot, so resources such as ``nvidia.com/gpu`` are not
meant."""


def masked(value: T, is_hidden: Callable[[str], bool]) -> T:
    """The value with each ``namespace/name`` of a hidden namespace replaced, in every string inside of it."""
    return _masked(value, is_hidden)  # type: ignore[no-any-return]


def _masked(value: Any, is_hidden: Callable[[str], bool]) -> Any:
    if isinstance(value, str):
        text = _NAME.sub(lambda match: ELSEWHERE if is_hidden(match[1]) else match[0], value)
        # Equal strings stay what they are: some are members of an enumeration.
        return value if text == value else text
    if isinstance(value, Mapping):
        return {key: _masked(item, is_hidden) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_masked(item, is_hidden) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        changes = {field.name: _masked(getattr(value, field.name), is_hidden) for field in fields(value)}
        return replace(value, **changes)
    return value
