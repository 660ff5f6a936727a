"""Caches evaluations per kind of request, and refreshes them for the nodes that changed since."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kopt.core.scheduling.placement import PodRequest
from kopt.core.units import WHOLE_GPU
from kopt.policies.placement import expected_fill
from kopt.policies.placement.feasible import Refusal, refusals
from kopt.policies.placement.fragmentation import Valuation, gradient
from kopt.policies.placement.reserve import Room, Sizes
from kopt.policies.placement.state import FleetState, Likeness
from kopt.policies.placement.typical import TypicalPods

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_FEW = 64
_MOST_LIKENESSES = 4096
Build = Callable[[TypicalPods, Sequence[str], int, int], Valuation]


class RowResult(NamedTuple):
    """One row of an `Outlook`."""

    refusal: int
    loss: float
    slot: int
    broken: NDArray[np.int16]


@dataclass
class Outlook:
    """One kind of request evaluated on every row, as of ``version``.

    Refusal codes, fragmentation loss (milli-GPU) and best slot, all (N,), and the sites that it breaks up, (N, K).
    """

    refusal: NDArray[np.int8]
    loss: Floats
    slot: NDArray[np.int16]
    broken: NDArray[np.int16]
    version: int = -1
    shape_version: int = -1
    by_likeness: dict[Likeness, "RowResult"] = field(default_factory=dict)
    """The result for a row with these amounts: most changes make a node equal to another one."""

    @classmethod
    def empty(cls, rows: int, sizes: int) -> "Outlook":
        return cls(
            np.zeros(rows, np.int8),
            np.full(rows, np.inf),
            np.full(rows, -1, np.int16),
            np.zeros((rows, sizes), np.int16),
        )


class FragmentationCache:
    """Outlooks of the latest kinds of request. The caller keeps it beside the state that it belongs to.

    ``kinds`` bounds memory: one kind takes about 20 bytes per node. ``build`` makes the valuation of free GPUs from
    typical pods, models, slots and the largest node's CPU.
    """

    def __init__(self, typical: TypicalPods, kinds: int = 256, build: Build = expected_fill.build) -> None:
        self.typical = typical
        self.room = Room(Sizes.of(typical))
        self._kinds = kinds
        self._build = build
        self._outlooks: OrderedDict[PodRequest, Outlook] = OrderedDict()
        self._latest: tuple[PodRequest | None, Outlook | None] = None, None
        """A decision uses the same outlook several times, and a lookup means hashing the request."""
        self._valuation: Valuation | None = None
        self._made_for: tuple[int, int, int] | None = None

    def learn(self, state: FleetState, typical: TypicalPods) -> Valuation:
        """The valuation for other typical pods, to be passed to `adopt`.

        Takes tenths of a second and changes nothing, so that a server can run it in the background.
        """
        return self._build(typical, tuple(state.models), state.slots, state.largest_cpu_milli)

    def adopt(self, state: FleetState, typical: TypicalPods, valuation: Valuation) -> None:
        """Use the valuation that `learn` made from now on."""
        self.typical, self._valuation, self.room = typical, valuation, Room(Sizes.of(typical))
        self._made_for = (len(state.models), state.slots, state.largest_cpu_milli)
        self._forget()

    def relearn(self, typical: TypicalPods) -> None:
        """Switch to other typical pods; the valuation is rebuilt when it is next needed."""
        self.typical, self._valuation, self._made_for = typical, None, None
        self._forget()

    def warm(self, state: FleetState, requests: Iterable[PodRequest]) -> None:
        """Evaluate kinds of request before they are needed."""
        for request in requests:
            self.outlook(state, request)

    def prepare(self, state: FleetState, request: PodRequest, at_once: int = 1000) -> Iterator[None]:
        """Evaluate a kind of request a few rows at a time; the state may change meanwhile.

        A server can answer calls in between: evaluating all of a large fleet takes tenths of a second.
        """
        valuation, outlook = self.valuation(state), Outlook.empty(state.rows, len(self.room.sizes.gpus))
        version, outlook.shape_version = state.version, state.shape_version
        for start in range(0, state.rows, at_once):
            if state.shape_version != outlook.shape_version:
                return
            self._evaluate(state, valuation, request, outlook, np.arange(start, min(start + at_once, state.rows)))
            yield
        # Rows that changed meanwhile are evaluated again by the next call.
        outlook.version = version
        self._keep(request, outlook)

    def valuation(self, state: FleetState) -> Valuation:
        """For the current fleet; rebuilt for a new model, more GPUs per node, or a larger node."""
        needed = (len(state.models), state.slots, state.largest_cpu_milli)
        if self._valuation is None or self._made_for != needed:
            self.adopt(state, self.typical, self.learn(state, self.typical))
        assert self._valuation is not None
        return self._valuation

    def outlook(self, state: FleetState, request: PodRequest) -> Outlook:
        """The request evaluated on every row of the current state."""
        valuation = self.valuation(state)
        latest, outlook = self._latest
        if latest is request and outlook is not None and outlook.version == state.version:
            return outlook
        outlook = self._outlooks.get(request)
        changed = state.changed_since(outlook.version) if outlook else None
        if outlook is None or changed is None or outlook.shape_version != state.shape_version:
            outlook = Outlook.empty(state.rows, len(self.room.sizes.gpus))
            self._keep(request, outlook)
            changed = np.arange(state.rows)
        if len(changed) > _FEW:
            self._evaluate(state, valuation, request, outlook, changed)
        else:
            self._evaluate_few(state, valuation, request, outlook, changed)
        outlook.version, outlook.shape_version = state.version, state.shape_version
        self._outlooks.move_to_end(request)
        self._latest = request, outlook
        return outlook

    def _forget(self) -> None:
        self._outlooks.clear()
        self._latest = None, None

    def _keep(self, request: PodRequest, outlook: Outlook) -> None:
        self._outlooks[request] = outlook
        if len(self._outlooks) > self._kinds:
            self._outlooks.popitem(last=False)

    def _evaluate(
        self, state: FleetState, valuation: Valuation, request: PodRequest, outlook: Outlook, changed: Ints
    ) -> None:
        refusal = refusals(state, request, changed)
        outlook.refusal[changed] = refusal
        fits = changed[refusal == Refusal.NONE]
        if len(fits):
            self._work_out(state, valuation, request, outlook, fits)

    def _evaluate_few(
        self, state: FleetState, valuation: Valuation, request: PodRequest, outlook: Outlook, changed: Ints
    ) -> None:
        """Evaluating rows takes forty numpy calls, however few rows there are; a lookup takes as long as one."""
        anew: list[tuple[int, Likeness]] = []
        for row in changed.tolist():
            alike = state.likeness(row)
            result = outlook.by_likeness.get(alike)
            if result is None:
                anew.append((row, alike))
            else:
                outlook.refusal[row], outlook.loss[row], outlook.slot[row], outlook.broken[row] = result
        if not anew:
            return
        self._evaluate(state, valuation, request, outlook, np.array([row for row, _ in anew]))
        if len(outlook.by_likeness) >= _MOST_LIKENESSES:
            outlook.by_likeness.clear()
        for row, alike in anew:
            outlook.by_likeness[alike] = RowResult(
                int(outlook.refusal[row]), float(outlook.loss[row]), int(outlook.slot[row]), outlook.broken[row].copy()
            )

    def _work_out(
        self, state: FleetState, valuation: Valuation, request: PodRequest, outlook: Outlook, fits: Ints
    ) -> None:
        loss, slot = gradient(state, valuation, request, fits)
        outlook.loss[fits], outlook.slot[fits] = loss, slot
        if len(self.room.sizes.gpus):
            used, own = np.full(len(fits), request.gpus.count), request.gpus.count
            if request.is_share:
                used = (state.gpu_free_milli[fits, slot] >= WHOLE_GPU).astype(np.int64)
            elif request.gpus.share < WHOLE_GPU:
                # It takes the emptiest GPUs, and no site is meant for it.
                used = np.minimum(used, np.count_nonzero(state.gpu_free_milli[fits] >= WHOLE_GPU, axis=1))
                own = 0
            outlook.broken[fits] = self.room.broken(state, fits, used, request.cpu_milli, own)
