"""What was worked out per kind of request, refreshed for the nodes that changed since."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kopt.core.placement import PodRequest
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
_MOST_SEEN = 4096
Build = Callable[[TypicalPods, Sequence[str], int, int], Valuation]


class Verdict(NamedTuple):
    """One row of an `Outlook`."""

    refusal: int
    loss: float
    slot: int
    broken: NDArray[np.int16]


@dataclass
class Outlook:
    """One kind of request against every row, as of ``version``.

    Refusal codes, fragmentation loss (milli-GPU) and best slot, all (N,), and the sites that it breaks up, (N, K).
    """

    refusal: NDArray[np.int8]
    loss: Floats
    slot: NDArray[np.int16]
    broken: NDArray[np.int16]
    version: int = -1
    shape_version: int = -1
    seen: dict[Likeness, "Verdict"] = field(default_factory=dict)
    """What came out for a row with these amounts: most changes make a node like another one."""

    @classmethod
    def empty(cls, rows: int, sizes: int) -> "Outlook":
        return cls(
            np.zeros(rows, np.int8),
            np.full(rows, np.inf),
            np.full(rows, -1, np.int16),
            np.zeros((rows, sizes), np.int16),
        )


class FragmentationCache:
    """Outlooks of the latest kinds of request. The caller holds it beside the state that it belongs to.

    ``kinds`` bounds memory: one kind takes about 20 bytes a node. ``build`` makes the valuation of free GPUs from
    typical pods, models, slots and the largest node's CPU.
    """

    def __init__(self, typical: TypicalPods, kinds: int = 256, build: Build = expected_fill.build) -> None:
        self.typical = typical
        self.room = Room(Sizes.of(typical))
        self._kinds = kinds
        self._build = build
        self._outlooks: OrderedDict[PodRequest, Outlook] = OrderedDict()
        self._latest: tuple[PodRequest | None, Outlook | None] = None, None
        """A decision asks for the same one several times, and looking it up means hashing the request."""
        self._valuation: Valuation | None = None
        self._made_for: tuple[int, int, int] | None = None

    def learn(self, state: FleetState, typical: TypicalPods) -> Valuation:
        """The valuation for other typical pods, to be handed to `adopt`.

        Takes tenths of a second and changes nothing, so that a server can do it beside its answers.
        """
        return self._build(typical, tuple(state.models), state.slots, state.largest_cpu_milli)

    def adopt(self, state: FleetState, typical: TypicalPods, valuation: Valuation) -> None:
        """Go on with what `learn` made."""
        self.typical, self._valuation, self.room = typical, valuation, Room(Sizes.of(typical))
        self._made_for = (len(state.models), state.slots, state.largest_cpu_milli)
        self._forget()

    def relearn(self, typical: TypicalPods) -> None:
        """Start again from other typical pods, at the next question."""
        self.typical, self._valuation, self._made_for = typical, None, None
        self._forget()

    def warm(self, state: FleetState, requests: Iterable[PodRequest]) -> None:
        """Work out kinds of request before they are asked for."""
        for request in requests:
            self.outlook(state, request)

    def prepare(self, state: FleetState, request: PodRequest, at_once: int = 1000) -> Iterator[None]:
        """Work out a kind of request some rows at a time; the state may change meanwhile.

        A server answers in between: all of a large fleet takes tenths of a second.
        """
        valuation, known = self.valuation(state), Outlook.empty(state.rows, len(self.room.sizes.gpus))
        version, known.shape_version = state.version, state.shape_version
        for start in range(0, state.rows, at_once):
            if state.shape_version != known.shape_version:
                return
            self._judge(state, valuation, request, known, np.arange(start, min(start + at_once, state.rows)))
            yield
        # Rows that changed since it began are worked out again with the next question.
        known.version = version
        self._keep(request, known)

    def valuation(self, state: FleetState) -> Valuation:
        """For the fleet as it is; made again when a model, more GPUs on a node or a larger node is new."""
        needed = (len(state.models), state.slots, state.largest_cpu_milli)
        if self._valuation is None or self._made_for != needed:
            self.adopt(state, self.typical, self.learn(state, self.typical))
        assert self._valuation is not None
        return self._valuation

    def outlook(self, state: FleetState, request: PodRequest) -> Outlook:
        """The request against every row, as the state is now."""
        valuation = self.valuation(state)
        latest, known = self._latest
        if latest is request and known is not None and known.version == state.version:
            return known
        known = self._outlooks.get(request)
        changed = state.changed_since(known.version) if known else None
        if known is None or changed is None or known.shape_version != state.shape_version:
            known = Outlook.empty(state.rows, len(self.room.sizes.gpus))
            self._keep(request, known)
            changed = np.arange(state.rows)
        if len(changed) > _FEW:
            self._judge(state, valuation, request, known, changed)
        else:
            self._judge_few(state, valuation, request, known, changed)
        known.version, known.shape_version = state.version, state.shape_version
        self._outlooks.move_to_end(request)
        self._latest = request, known
        return known

    def _forget(self) -> None:
        self._outlooks.clear()
        self._latest = None, None

    def _keep(self, request: PodRequest, known: Outlook) -> None:
        self._outlooks[request] = known
        if len(self._outlooks) > self._kinds:
            self._outlooks.popitem(last=False)

    def _judge(
        self, state: FleetState, valuation: Valuation, request: PodRequest, known: Outlook, changed: Ints
    ) -> None:
        refusal = refusals(state, request, changed)
        known.refusal[changed] = refusal
        fits = changed[refusal == Refusal.NONE]
        if len(fits):
            self._work_out(state, valuation, request, known, fits)

    def _judge_few(
        self, state: FleetState, valuation: Valuation, request: PodRequest, known: Outlook, changed: Ints
    ) -> None:
        """Judging rows is forty calls of numpy, however few they are; a look takes as long as one."""
        anew: list[tuple[int, Likeness]] = []
        for row in changed.tolist():
            alike = state.likeness(row)
            found = known.seen.get(alike)
            if found is None:
                anew.append((row, alike))
            else:
                known.refusal[row], known.loss[row], known.slot[row], known.broken[row] = found
        if not anew:
            return
        self._judge(state, valuation, request, known, np.array([row for row, _ in anew]))
        if len(known.seen) >= _MOST_SEEN:
            known.seen.clear()
        for row, alike in anew:
            known.seen[alike] = Verdict(
                int(known.refusal[row]), float(known.loss[row]), int(known.slot[row]), known.broken[row].copy()
            )

    def _work_out(
        self, state: FleetState, valuation: Valuation, request: PodRequest, known: Outlook, fits: Ints
    ) -> None:
        loss, slot = gradient(state, valuation, request, fits)
        known.loss[fits], known.slot[fits] = loss, slot
        if len(self.room.sizes.gpus):
            taken = np.full(len(fits), request.gpus.count)
            if request.is_share:
                taken = (state.gpu_free_milli[fits, slot] >= WHOLE_GPU).astype(np.int64)
            known.broken[fits] = self.room.broken(state, fits, taken, request.cpu_milli, request.gpus.count)
