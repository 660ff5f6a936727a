"""Chooses one node and its GPUs for one pod, with reasons.

`choose` names exactly one winner: the highest weighted score, and among equal scores the first row, so that the same
state and request always give the same result.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from kopt.core.reason import Reason
from kopt.core.scheduling.placement import PodRequest, TopologyPreference
from kopt.core.units import WHOLE_GPU, counted, format_gpus
from kopt.policies.placement.cache import FragmentationCache, Outlook
from kopt.policies.placement.feasible import SENTENCES, Refusal, refusal_counts
from kopt.policies.placement.preferred import first_choice, impaired, passed_over, well_slots
from kopt.policies.placement.scores import WEIGHTS, Scored, weigh
from kopt.policies.placement.state import FleetState
from kopt.policies.placement.topology import Topologies, satisfies

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Tiers = NDArray[np.int8]
RUNNER_UPS = 3
_SORTED = 256
"""Up to this many rows, sorting is faster than partial selection."""


@dataclass(frozen=True)
class Ranked:
    """A feasible node, its weighted score in GPUs and the parts of the score."""

    node: str
    score: float
    breakdown: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """The decision for one pod. ``node`` is None if no candidate is feasible; ``gpus`` are slots of the node.

    ``rejected`` counts the other candidates by `Refusal`; ``considered`` all candidates. ``impaired`` are the first few
    nodes with room and a degraded part that affects the pod; the chosen node comes first if it is among them.
    """

    request: PodRequest
    node: str | None
    gpus: tuple[int, ...] = ()
    score: float = 0.0
    breakdown: Mapping[str, float] = field(default_factory=dict)
    runner_ups: tuple[Ranked, ...] = ()
    rejected: Mapping[Refusal, int] = field(default_factory=dict)
    considered: int = 0
    impaired: tuple[str, ...] = ()

    @property
    def feasible(self) -> int:
        """Number of feasible candidates."""
        return self.considered - sum(self.rejected.values())


def choose(
    state: FleetState,
    request: PodRequest,
    candidates: Ints | None = None,
    *,
    cache: FragmentationCache,
    weights: Mapping[str, float] = WEIGHTS,
    topologies: Topologies | None = None,
    tiers: Tiers | None = None,
    apart: Collection[int] = (),
) -> Choice:
    """The best of ``candidates`` (rows; None means every node) for ``request``; changes nothing.

    A node with a degraded part that affects the pod is chosen only if no other node is feasible. ``tiers`` (one per
    row) are for pods of a gang: the lowest tier with room wins, whatever other tiers score. ``apart`` are rows
    with another replica of the pod's service.

    ``cache`` belongs to this state and holds the typical pods. Without ``topologies`` no node's links are known:
    preferred topologies and bandwidths are ignored, and no node satisfies a required topology.
    """
    outlook = cache.outlook(state, request)
    rows = np.flatnonzero(state.ready) if candidates is None else candidates
    codes = outlook.refusal[rows]
    fits = rows[codes == Refusal.NONE]
    scored = _scored(state, request, fits, outlook, cache.room.prices(state), topologies)
    if apart:
        scored = replace(scored, beside=np.isin(scored.rows, list(apart)).astype(np.float64))
    rejected = refusal_counts(codes) if len(fits) < len(rows) else {}
    if len(scored.rows) < len(fits):
        rejected = {**rejected, Refusal.TOPOLOGY: len(fits) - len(scored.rows)}
    ill: list[int] = []
    if state.ill:
        ill = fits[impaired(state, request, fits, gang=tiers is not None)][: RUNNER_UPS + 1].tolist()
    if not len(scored.rows):
        return Choice(request, None, rejected=rejected, considered=len(rows), impaired=_names(state, ill))
    scored, passed = _preferred(scored, tiers)
    rejected = {**rejected, **passed}
    total, parts = weigh(scored, weights)
    indexes = _first(total, 1 + RUNNER_UPS)
    names = [state.names[row] for row in scored.rows[indexes].tolist()]
    columns = [_at(part, indexes) for part in parts.values()]
    ranked = [
        Ranked(name, score, dict(zip(parts, values, strict=True)))
        for name, score, *values in zip(names, total[indexes].tolist(), *columns, strict=True)
    ]
    row, first = int(scored.rows[indexes[0]]), ranked[0]
    gpus = _gpus(state, request, row, outlook, topologies)
    if ill and impaired(state, request, scored.rows[indexes[:1]], gang=tiers is not None).any():
        ill = [row, *(number for number in ill if number != row)]
    return Choice(
        request,
        first.node,
        gpus,
        first.score,
        first.breakdown,
        tuple(ranked[1:]),
        rejected,
        len(rows),
        _names(state, ill),
    )


def best(
    state: FleetState,
    request: PodRequest,
    *,
    cache: FragmentationCache,
    candidates: Ints | None = None,
    weights: Mapping[str, float] = WEIGHTS,
    topologies: Topologies | None = None,
) -> tuple[int, tuple[int, ...]] | None:
    """The row and GPU slots that `choose` names, without the details for an explanation."""
    outlook = cache.outlook(state, request)
    rows = np.flatnonzero(state.ready) if candidates is None else candidates
    fits = rows[outlook.refusal[rows] == Refusal.NONE]
    scored = _scored(state, request, fits, outlook, cache.room.prices(state), topologies)
    if not len(scored.rows):
        return None
    scored, _ = _preferred(scored, None)
    total, _ = weigh(scored, weights)
    row = int(scored.rows[np.argmax(total)])
    return row, _gpus(state, request, row, outlook, topologies)


def _scored(
    state: FleetState, request: PodRequest, fits: Ints, outlook: Outlook, prices: Floats, topologies: Topologies | None
) -> Scored:
    rated: Floats | float = 0.0
    if request.minimum is not None and request.gpus.count > 1:
        fits = fits[(topologies or Topologies()).reach(state, request, fits)]
    if request.topology is not TopologyPreference.ANY and request.gpus.count > 1:
        rated = (topologies or Topologies()).rate(state, request, fits)
        if request.topology_required:
            satisfied = satisfies(request.topology, rated)
            fits, rated = fits[satisfied], rated[satisfied]
    return Scored(state, request, fits, outlook.loss[fits], outlook.broken, prices, rated)


def _preferred(scored: Scored, tiers: Tiers | None) -> tuple[Scored, Mapping[Refusal, int]]:
    """The preferred rows, healthy ones and those near the pod's gang, and why the others were left out."""
    if tiers is None and not scored.state.ill:
        return scored, {}
    impairs = impaired(scored.state, scored.request, scored.rows, gang=tiers is not None)
    if tiers is None and not impairs.any():
        return scored, {}
    selected = first_choice(impairs, None if tiers is None else tiers[scored.rows])
    rated, beside = (part if isinstance(part, float) else part[selected] for part in (scored.topology, scored.beside))
    result = replace(scored, rows=scored.rows[selected], loss=scored.loss[selected], topology=rated, beside=beside)
    return result, passed_over(impairs, selected)


def _names(state: FleetState, rows: list[int]) -> tuple[str, ...]:
    return tuple(state.names[row] for row in rows)


def _gpus(
    state: FleetState, request: PodRequest, row: int, outlook: Outlook, topologies: Topologies | None
) -> tuple[int, ...]:
    if topologies is not None and request.gpus.count > 1 and (slots := topologies.slots(state, request, row)):
        return slots
    return slots_for(state, row, request, int(outlook.slot[row]))


def slots_for(state: FleetState, row: int, request: PodRequest, preferred: int = -1) -> tuple[int, ...]:
    """GPU slots for a pod that fits the row: the preferred one for a share, those with the most left for shares of
    several GPUs, so that as many pods fit as can, else the first with enough left; degraded ones only if there are no
    others."""
    if state.poor[row]:
        return _well_first(state, row, request, preferred)
    if preferred >= 0:
        return (preferred,)
    return roomiest_slots(state, row, request)


def roomiest_slots(state: FleetState, row: int, request: PodRequest) -> tuple[int, ...]:
    """As ``slots_for``, however well the GPUs are: as many pods find room one after another as can."""
    free = state.gpu_free_milli[row]
    enough = np.flatnonzero(free >= request.gpus.share)
    if request.gpus.count > 1 and request.gpus.share < WHOLE_GPU:
        enough = enough[np.argsort(-free[enough], kind="stable")]
    return tuple(int(slot) for slot in enough[: request.gpus.count])


def _well_first(state: FleetState, row: int, request: PodRequest, preferred: int) -> tuple[int, ...]:
    """Healthy slots first; among them the preferred one, then for a share the fullest, for shares of several GPUs the
    emptiest, else the first."""
    well, free = well_slots(state, row), state.gpu_free_milli[row]
    slots = np.flatnonzero(free >= request.gpus.share).tolist()
    fuller = free if request.is_share else -free if request.gpus.share < WHOLE_GPU else np.zeros_like(free)
    slots.sort(key=lambda slot: (not well[slot], slot != preferred, fuller[slot], slot))
    return tuple(slots[: request.gpus.count])


def explain(choice: Choice) -> tuple[Reason, ...]:
    """Why this node, why not the others, with the numbers."""
    return (_placed(choice) if choice.node else _no_node(choice), *_others(choice), *_rejections(choice))


def _placed(choice: Choice) -> Reason:
    parts = ", ".join(f"{name} {value:+.3f}" for name, value in choice.breakdown.items())
    gpus = f", GPU {', '.join(map(str, choice.gpus))}" if choice.gpus else ""
    best = "the only node" if choice.feasible == 1 else f"the best of {choice.feasible} nodes"
    return Reason(
        "BEST_NODE",
        f"Node {choice.node}{gpus}: {best} with room for {_requested(choice.request)}, "
        f"score {choice.score:.3f} GPUs ({parts}).",
        {"node": str(choice.node), "score": choice.score, "feasible": choice.feasible, **choice.breakdown},
    )


def _no_node(choice: Choice) -> Reason:
    why = "; ".join(f"{count} {SENTENCES[code]}" for code, count in choice.rejected.items())
    cure = "It waits for room." if any(not code.permanent for code in choice.rejected) else "Request what a node has."
    nodes = "The only node has no" if choice.considered == 1 else f"None of {choice.considered} nodes has"
    about = f"{nodes} room for {_requested(choice.request)}"
    text = f"{about}: {why or 'there are no nodes'}. {cure}"
    return Reason("NO_NODE", text, {"considered": choice.considered})


def _others(choice: Choice) -> tuple[Reason, ...]:
    reasons = []
    for other in choice.runner_ups:
        gap = {name: choice.breakdown[name] - value for name, value in other.breakdown.items()}
        decisive = max(gap, key=lambda name: gap[name])
        text = f"Node {other.node} scores {choice.score - other.score:.3f} GPUs less, mostly because of {decisive}."
        reasons.append(Reason("RUNNER_UP", text, {"node": other.node, "score": other.score, **other.breakdown}))
    return tuple(reasons)


def _rejections(choice: Choice) -> tuple[Reason, ...]:
    if not choice.node:
        return ()
    return tuple(
        Reason(code.name, f"{counted(count, 'node')}: {SENTENCES[code]}.", {"nodes": count})
        for code, count in choice.rejected.items()
    )


def _requested(request: PodRequest) -> str:
    gpus = request.gpus
    text = f"{format_gpus(request.cpu_milli)} CPU"
    if gpus.count:
        text += f" and {gpus.count if gpus.share == WHOLE_GPU else format_gpus(gpus.total)} GPU"
    return text + (f" ({' or '.join(gpus.models)})" if gpus.models else "")


def _at(part: NDArray[np.float64] | float, indexes: list[int]) -> list[float]:
    return [part] * len(indexes) if isinstance(part, float) else part[indexes].tolist()


def _first(total: NDArray[np.float64], most: int) -> list[int]:
    """Indexes of the highest totals; among equal ones the first row comes first."""
    if len(total) <= _SORTED:
        return np.argsort(-total, kind="stable")[:most].tolist()  # type: ignore[no-any-return]
    bar = np.partition(total, len(total) - most)[len(total) - most]
    above = np.flatnonzero(total > bar)
    level = np.flatnonzero(total == bar)[: most - len(above)]
    indexes = np.concatenate([above, level])
    return [int(index) for index in indexes[np.lexsort((indexes, -total[indexes]))]]
