"""Reading decoded Kubernetes objects that anyone may have written: nothing here raises for a wrong shape."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

Path = tuple[str | int, ...]
T = TypeVar("T")

_EMPTY: Mapping[str, Any] = {}
_MOST = 1_000_000


def slim(document: dict[str, Any], *without: str) -> dict[str, Any]:
    """The same object without ``managedFields``, often most of it and read by nothing here, and the parts named."""
    document["metadata"].pop("managedFields", None)
    for name in without:
        document.pop(name, None)
    return document


def at(document: Any, *path: str | int) -> Any:
    """What lies at a path, or None."""
    for step in path:
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and isinstance(step, int) and 0 <= step < len(document):
            document = document[step]
        else:
            return None
    return document


def mapping(document: Any, *path: str | int) -> Mapping[str, Any]:
    """The mapping at a path; empty when there is none."""
    result = at(document, *path)
    return result if isinstance(result, dict) else _EMPTY


def text(document: Any, *path: str | int) -> str:
    """The string at a path; empty when there is none."""
    result = at(document, *path)
    return result if isinstance(result, str) else ""


def texts(document: Any, *path: str | int) -> tuple[str, ...]:
    """The strings in the list at a path."""
    result = at(document, *path)
    return tuple([name for name in result if isinstance(name, str)]) if isinstance(result, list) else ()


def count(document: Any, *path: str | int, default: int = 1) -> int:
    """The number at a path, from 0 to a million; ``default`` when there is none."""
    result = at(document, *path)
    if isinstance(result, bool) or not isinstance(result, int):
        return default
    return min(max(result, 0), _MOST)


def items(document: Any, *path: str | int) -> Iterator[tuple[str | int, Any]]:
    """(index or key, value) of the list or mapping at a path."""
    result = at(document, *path)
    if isinstance(result, list):
        yield from enumerate(result)
    elif isinstance(result, dict):
        yield from ((key, value) for key, value in result.items() if isinstance(key, str))


def has_condition(document: Any, *kinds: str) -> bool:
    """Whether a condition of one of these types is true in the status of an object."""
    conditions = (item for _, item in items(document, "status", "conditions"))
    return any(text(item, "type") in kinds and text(item, "status") == "True" for item in conditions)


def readable(documents: Iterable[Any], keep: Callable[[Any], T | None]) -> Iterator[tuple[Any, T]]:
    """Each document with what ``keep`` makes of it; those that it cannot understand, or says None of, are left out."""
    for document in documents:
        try:
            value = keep(document)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
        if value is not None:
            yield document, value


def controller_of(document: Any) -> tuple[str, str]:
    """(API group, kind) of the owner that controls an object; empty strings without one."""
    for _, owner in items(document, "metadata", "ownerReferences"):
        if at(owner, "controller") is True:
            group, _, version = text(owner, "apiVersion").rpartition("/")
            return (group if version else ""), text(owner, "kind")
    return "", ""
