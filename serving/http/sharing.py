"""Fair shares of what a replica has: requests at once, buffered bytes, rows that are kept.

Requests and bytes by a dynamic threshold (Choudhury and Hahne, Dynamic queue length thresholds for shared-memory
packet switches, 1998): no caller may hold more than is free. One caller alone gets half, two a third each, and there
is always room for the next one. Rows by max-min fairness: the caller that keeps most loses its oldest.
"""

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from starlette.types import Scope

K = TypeVar("K")
V = TypeVar("V")


class Statements(Protocol):
    """Of a transaction, see ``serving.base.database``."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> int: ...

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...


class Shares:
    """``most`` units for all callers. The empty name stands for unidentified callers and is not limited."""

    def __init__(self, most: int) -> None:
        self._most, self.total = most, 0
        self._held: Counter[str] = Counter()

    def acquire(self, caller: str, amount: int = 1) -> bool:
        """Whether the caller gets the units; ``release`` returns them."""
        free = self._most - self.total
        if amount > free or (caller and self._held[caller] + amount > free):
            return False
        self._held[caller] += amount
        self.total += amount
        return True

    def release(self, caller: str, amount: int = 1) -> None:
        self.total -= amount
        self._held[caller] -= amount
        if not self._held[caller]:
            del self._held[caller]


class KeptByCaller(Generic[K, V]):
    """At most ``most`` entries of all callers. Past it the oldest of the caller that keeps most goes, so that one
    caller's flood erases its own. Not thread-safe."""

    def __init__(self, most: int) -> None:
        self._most, self._total = most, 0
        self._kept: dict[str, OrderedDict[K, V]] = {}

    def __len__(self) -> int:
        return self._total

    def get(self, caller: str, key: K) -> V | None:
        kept = self._kept.get(caller)
        return None if kept is None else kept.get(key)

    def put(self, caller: str, key: K, value: V) -> None:
        """As the caller's newest."""
        kept = self._kept.setdefault(caller, OrderedDict())
        self._total += key not in kept
        kept[key] = value
        kept.move_to_end(key)
        while self._total > self._most:
            largest = max(self._kept, key=lambda name: (len(self._kept[name]), name == caller))
            self.pop(largest, next(iter(self._kept[largest])))

    def pop(self, caller: str, key: K) -> None:
        """Nothing where it is not kept."""
        kept = self._kept.get(caller)
        if kept is None or key not in kept:
            return
        del kept[key]
        self._total -= 1
        if not kept:
            del self._kept[caller]

    def values(self, caller: str) -> Iterable[V]:
        """Of one caller, the oldest first."""
        return list(self._kept.get(caller, {}).values())


def address_of(scope: Scope) -> str:
    """The caller by address; empty on loopback, where a proxy stands for all callers."""
    host = (scope.get("client") or ("",))[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    return "" if address.is_loopback else str(address)


def fair_level(counts: Iterable[int], most: int) -> int:
    """What each may keep so that all keep ``most`` together: who has less keeps all of it."""
    ordered = sorted(counts)
    for index, count in enumerate(ordered):
        level = most // (len(ordered) - index)
        if count > level:
            return level
        most -= count
    return ordered[-1] if ordered else 0


def trim(
    db: Statements,
    table: str,
    key: str,
    age: str,
    most: int,
    groups: Sequence[str],
    where: str = "1 = 1",
    values: tuple[str, ...] = (),
) -> int:
    """Delete rows beyond ``most``, the oldest of those who keep most; returns how many.

    ``groups`` are SQL expressions: of whom a row is, then within one of these. None of the SQL comes from callers.
    """
    excess = _count(db, table, where, values) - most
    if excess <= 0:
        return 0
    deleted = 0
    if groups:
        of, *within = groups
        counts = dict(db.query(f"SELECT {of}, count(*) FROM {table} WHERE {where} GROUP BY 1", values))
        level = max(1, fair_level(counts.values(), most))
        for name, count in counts.items():
            if count > level:
                deleted += trim(db, table, key, age, level, within, f"{where} AND {of} = ?", (*values, name))
    if deleted < excess:
        oldest = f"SELECT {key} FROM {table} WHERE {where} ORDER BY {age} LIMIT ?"
        deleted += db.execute(f"DELETE FROM {table} WHERE ({key}) IN ({oldest})", (*values, excess - deleted))
    return deleted


def _count(db: Statements, table: str, where: str, values: tuple[str, ...]) -> int:
    ((rows,),) = db.query(f"SELECT count(*) FROM {table} WHERE {where}", values)
    return int(rows)
