"""Nodes by what of their GPUs is left, kept as slices, claims and selections change.

Each change marks the nodes that it is about; ``settle`` reads these anew, from what there is then. So it does not
matter in which order changes come, how often, or how late.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kopt.cluster.client.resources import Key
from kopt.cluster.workloads.requests.devices import ObservedClaim, PublishedSlice
from kopt.controllers.devices.gpus import DeviceName, Gpu, NodeDevices, Part, devices_of, given, newest
from kopt.controllers.devices.sets import LinkedGpus, best_gpus

_PoolName = tuple[str, str]
"""Driver and name."""
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Expected = tuple[tuple[str, int], ...]
"""Shares of instances in percent, by profile."""


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs of one model for which the same instances are expected: a policy learns from requests for each."""

    model: str
    expected: Expected = ()


@dataclass(frozen=True, slots=True)
class OpenGpus:
    """Nodes with GPUs of a group of which something may be selected; the number is 0."""

    driver: str
    group: Group


@dataclass(frozen=True, slots=True)
class LaidOut:
    """Nodes with such a GPU, by the number of its layout. ``whole``: published as a whole, else cut on demand."""

    driver: str
    group: Group
    whole: bool


@dataclass(frozen=True, slots=True)
class FreeGpus:
    """Nodes by how many whole GPUs nobody has. ``model``: None for any."""

    driver: str
    model: str | None


Family = OpenGpus | LaidOut | FreeGpus


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """``gpus``: in the order of their UUIDs."""

    gpus: tuple[Gpu, ...]
    expected: Expected
    linked: LinkedGpus | None
    _best: dict[tuple[FreeGpus, int], tuple[float, tuple[str, ...]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def group(self, gpu: Gpu) -> Group:
        return Group(gpu.model, self.expected)

    def free(self, family: FreeGpus) -> tuple[str, ...]:
        return tuple(
            gpu.uuid
            for gpu in self.gpus
            if gpu.is_whole
            and not (gpu.is_closed or gpu.is_taken)
            and gpu.driver == family.driver
            and family.model in (None, gpu.model)
        )

    def best(self, family: FreeGpus, count: int) -> tuple[float, tuple[str, ...]]:
        """How well the best so many free GPUs are linked, and these."""
        if (family, count) not in self._best:
            self._best[family, count] = best_gpus(self.free(family), count, self.linked)
        return self._best[family, count]

    def laid_out(self, family: LaidOut, layout: int) -> Gpu:
        """The first GPU of a family with this layout."""
        return next(gpu for gpu in self.gpus if (family, layout) in self._layouts(gpu))

    def entries(self) -> frozenset[tuple[Family, int]]:
        """Where this node stands in the index."""
        result: set[tuple[Family, int]] = set()
        for gpu in self.gpus:
            if not gpu.is_closed:
                result.add((OpenGpus(gpu.driver, self.group(gpu)), 0))
                result.update(self._layouts(gpu))
        for family in {FreeGpus(gpu.driver, model) for gpu in self.gpus for model in (None, gpu.model)}:
            if free := self.free(family):
                result.add((family, len(free)))
        return frozenset(result)

    def _layouts(self, gpu: Gpu) -> Iterator[tuple[LaidOut, int]]:
        if gpu.layout is not None and not gpu.is_closed:
            for whole, is_published in ((True, gpu.is_whole), (False, gpu.is_cut)):
                if is_published:
                    yield LaidOut(gpu.driver, self.group(gpu), whole), gpu.layout


class GpuIndex:
    """``expected`` names what instances are expected on a node, ``linked`` is a live view by node: ``touch`` says that
    either has changed."""

    def __init__(self, expected: Callable[[str], Expected], linked: Mapping[Key, LinkedGpus]) -> None:
        self._expected, self._linked = expected, linked
        self._slices: dict[Key, PublishedSlice] = {}
        self._pools: dict[_PoolName, dict[Key, PublishedSlice]] = {}
        self._pools_of: dict[str, dict[_PoolName, int]] = {}
        """Of each node: how many slices of a pool it has."""
        self._claims: dict[Key, tuple[DeviceName, ...]] = {}
        self._allocated: dict[_PoolName, dict[Key, tuple[DeviceName, ...]]] = {}
        """What each claim has of a pool, known or not."""
        self._selected: dict[str, dict[str, tuple[Part, ...]]] = {}
        """Of each node, by the key of the selection."""
        self._published: dict[str, NodeDevices] = {}
        self._nodes: dict[str, NodeGpus] = {}
        self._entries: dict[str, frozenset[tuple[Family, int]]] = {}
        self._by_number: dict[Family, dict[int, list[str]]] = {}
        self._changed: set[str] = set()

    def put_slice(self, key: Key, part: PublishedSlice | None) -> None:
        """None: it is gone."""
        old = self._slices.pop(key, None)
        if old is not None:
            self._move_slice(key, old, is_there=False)
        if part is not None:
            self._slices[key] = part
            self._move_slice(key, part, is_there=True)

    def _move_slice(self, key: Key, part: PublishedSlice, *, is_there: bool) -> None:
        pool = part.driver, part.pool
        _put_in(self._pools, pool, key, part if is_there else None)
        count = self._pools_of.get(part.node, {}).get(pool, 0) + (1 if is_there else -1)
        _put_in(self._pools_of, part.node, pool, count or None)
        # One slice more or less makes a pool complete or incomplete, on every node that it has devices of.
        nodes = {part.node, *(each.node for each in self._pools.get(pool, {}).values())}
        for node in nodes:
            self._published.pop(node, None)
        self._changed |= nodes

    def put_claim(self, key: Key, claim: ObservedClaim | None) -> None:
        """None: it is gone."""
        old, new = self._claims.pop(key, ()), () if claim is None else claim.allocated
        for driver, pool in {name[:2] for name in (*old, *new)}:
            names = tuple(name for name in new if name[:2] == (driver, pool))
            _put_in(self._allocated, (driver, pool), key, names or None)
            self._changed |= {part.node for part in self._pools.get((driver, pool), {}).values()}
        if new:
            self._claims[key] = new

    def put_selection(self, key: str, node: str, parts: Sequence[Part]) -> None:
        """What was selected on a node, until it is put again without parts."""
        _put_in(self._selected, node, key, tuple(parts) or None)
        self._changed.add(node)

    def touch(self, node: str | None = None) -> None:
        """Links or what is expected may have changed on a node, without a name on all."""
        self._changed |= self._nodes.keys() if node is None else {node}

    def settle(self, most: int | None = None) -> bool:
        """Read nodes anew that have changed, ``most`` of them, and whether that was all; what is asked for below is as
        of then."""
        left = len(self._changed) if most is None else most
        while self._changed and left > 0:
            self._settle(self._changed.pop())
            left -= 1
        return not self._changed

    def families(self) -> Collection[Family]:
        return self._by_number.keys()

    def numbers(self, family: Family) -> Mapping[int, Sequence[str]]:
        """Names of nodes in their order, by the number that the family is by."""
        return self._by_number.get(family, {})

    def node(self, name: str) -> NodeGpus:
        return self._nodes[name]

    def nodes(self) -> Mapping[str, NodeGpus]:
        return self._nodes

    def _settle(self, name: str) -> None:
        published = self._published.get(name)
        if published is None and name in self._pools_of:
            pools = [newest(self._pools[pool]) for pool in sorted(self._pools_of[name])]
            published = devices_of(name, (part for pool in pools for part in pool if part.node == name))
            self._published[name] = published
        if published is None or not published.gpus:
            self._nodes.pop(name, None)
            self._enter(name, frozenset())
            return
        gpus = given(published.gpus, self._given(name, published))
        node = NodeGpus(gpus, self._expected(name), self._linked.get(("", name)))
        if node != self._nodes.get(name):
            self._nodes[name] = node
            self._enter(name, node.entries())

    def _given(self, name: str, published: NodeDevices) -> Iterator[Part]:
        for pool in self._pools_of[name]:
            for names in self._allocated.get(pool, {}).values():
                yield from (published.parts[each] for each in names if each in published.parts)
        for parts in self._selected.get(name, {}).values():
            yield from parts

    def _enter(self, name: str, entries: frozenset[tuple[Family, int]]) -> None:
        old = self._entries.pop(name, frozenset())
        if entries:
            self._entries[name] = entries
        for family, number in old - entries:
            nodes = self._by_number[family][number]
            del nodes[bisect_left(nodes, name)]
            if not nodes:
                _put_in(self._by_number, family, number, None)
        for family, number in entries - old:
            insort(self._by_number.setdefault(family, {}).setdefault(number, []), name)


def _put_in(tables: dict[T, dict[K, V]], table: T, key: K, value: V | None) -> None:
    """None: it is taken out, and a table that is then empty with it."""
    if value is not None:
        tables.setdefault(table, {})[key] = value
        return
    rows = tables.get(table, {})
    rows.pop(key, None)
    if not rows:
        tables.pop(table, None)
