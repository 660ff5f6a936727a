"""JSON patches (RFC 6902) that are empty when nothing is to be changed."""

from functools import lru_cache
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import Path


class JsonPatch:
    """Collects the operations that bring ``document``, which is changed along, into the wanted state.

    A value that is there already costs no operation; missing parents are added with their first child. An ancestor
    of another type (someone wrote a list where a mapping belongs) is left alone.
    """

    def __init__(self, document: Object) -> None:
        self.document = document
        self.operations: list[Object] = []

    def put(self, path: Path, value: Any) -> None:
        """Set the value at a path."""
        parent: Any = self.document
        for depth, step in enumerate(path[:-1]):
            child = _child(parent, step)
            if child is None:
                if not isinstance(parent, dict):
                    return
                # One each, or what is put under it later would show in this operation, too.
                parent[str(step)] = _nested(path[depth + 1 :], value)
                self._add(path[: depth + 1], _nested(path[depth + 1 :], value))
                return
            parent = child
        last = path[-1]
        if not isinstance(parent, dict) or parent.get(last) == value:
            return
        verb = "replace" if parent.get(last) is not None else "add"
        parent[str(last)] = value
        self._add(path, value, verb)

    def drop(self, path: Path) -> None:
        """Remove what is at a path, where anything is."""
        parent: Any = self.document
        for step in path[:-1]:
            parent = _child(parent, step)
        if isinstance(parent, dict) and path[-1] in parent:
            del parent[path[-1]]
            self.operations.append({"op": "remove", "path": pointer(path)})

    def _add(self, path: Path, value: Any, verb: str = "add") -> None:
        self.operations.append({"op": verb, "path": pointer(path), "value": value})


@lru_cache(maxsize=1024)
def pointer(path: Path) -> str:
    """The JSON pointer (RFC 6901) of a path."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def _nested(path: Path, value: Any) -> Any:
    """A value under new mappings."""
    for step in reversed(path):
        value = {step: value}
    return value


def _child(parent: Any, step: str | int) -> Any:
    if isinstance(parent, dict):
        return parent.get(step)
    if isinstance(parent, list) and isinstance(step, int) and 0 <= step < len(parent):
        return parent[step]
    return None
