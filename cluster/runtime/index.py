"""Objects by something else than their key: by the Job or the workload that they belong to."""

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from kopt.cluster.client.resources import Key
from kopt.cluster.runtime.informer import Change

T = TypeVar("T")
N = TypeVar("N", bound=Hashable)


class Index(Generic[N, T]):
    """``names`` are the keys of an object. ``follow`` subscribes to an informer or to an object cache."""

    def __init__(self, names: Callable[[T], Iterable[N]]) -> None:
        self._names = names
        self._objects: dict[N, dict[Key, T]] = {}

    def of(self, name: N) -> list[T]:
        """What changed last comes last."""
        return list(self._objects.get(name, {}).values())

    @property
    def names(self) -> list[N]:
        """By which something can be looked up."""
        return list(self._objects)

    def follow(self, change: Change[T]) -> None:
        for value, is_new in ((change.old, False), (change.new, True)):
            if value is None:
                continue
            for name in self._names(value):
                objects = self._objects.setdefault(name, {})
                objects.pop(change.key, None)
                if is_new:
                    objects[change.key] = value
                elif not objects:
                    del self._objects[name]
