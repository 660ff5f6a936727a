"""Which shape is over soonest: predicted wait, run time at the shape's speed, and what it strands."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kopt.core.reason import Reason
from kopt.core.scheduling.replicas import NodeGpus, ReplicaAdvice, Shape, ShapeEstimate
from kopt.core.units import WHOLE_GPU, counted, format_span
from kopt.core.workload.run_time import RunTimeQuantiles
from kopt.policies.diagnosis.queue_model import NodeRoom, QueuedGpus, QueueModel
from kopt.policies.diagnosis.start_times import DRAWS, start_times
from kopt.policies.replicas.shapes import by_smallest_node, can_ever_fit, fits_now, shapes_of
from kopt.policies.replicas.slowdown import slowdown
from kopt.policies.replicas.stranding import USUAL, Fragmentation

NAME = "kopt/replicas"
"""Of the workload in question among those that wait."""
STRANDED_WEIGHT = 0.1
"""What a free GPU costs that others can no longer use while the workload runs, by what one of its own does; as much is
gained by one that nothing else could use."""
NEAR = 0.01
"""Predictions are no better than that, and fewer replicas are fewer to fail."""
MOST_SHAPES = 64
_UNKNOWN_WAIT = "It does not fit now, and when it would is not known."


@dataclass(frozen=True)
class ReplicaQuestion:
    """``gpus`` in all, to be divided over ``nodes``. Raises ValueError where that cannot be.

    ``run_seconds``: how long it runs in its fastest shape. ``step_seconds``: of a step by GPUs of a replica, where a
    model is named; shapes that are not there do not fit in memory. ``running`` and ``queue`` of ``model`` are what the
    wait follows from, with ``run_times`` by their names; its nodes are replaced by ``nodes``. ``usual``: how often pods
    on so many GPUs come.
    """

    gpus: int
    nodes: tuple[NodeGpus, ...]
    run_seconds: float
    step_seconds: Mapping[int, float] | None = None
    model: QueueModel = QueueModel()
    run_times: Mapping[str, RunTimeQuantiles] = field(default_factory=dict)
    usual: Mapping[int, float] = field(default_factory=lambda: USUAL)
    over_two_nodes: float | None = None
    """What a second node adds to a step where no model is named; None: as measured, see ``slowdown``."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.run_seconds) and self.run_seconds > 0):
            raise ValueError(f"a run of {self.run_seconds:g} s")
        if not any(node.gpus for node in self.nodes):
            raise ValueError("no node has GPUs")
        if any(not (math.isfinite(value) and value > 0) for value in (self.step_seconds or {}).values()):
            raise ValueError("times of steps must be positive")

    def speed(self, shape: Shape) -> float | None:
        """Its step's time over that of the fastest shape; None where it does not fit in memory."""
        if self.step_seconds is not None:
            seconds = self.step_seconds.get(shape.gpus)
            return None if seconds is None else seconds / min(self.step_seconds.values())
        most = max(node.gpus for node in self.nodes)
        fastest = min(each.replicas for each in shapes_of(self.gpus) if each.gpus <= most)
        measured = () if self.over_two_nodes is None else (self.over_two_nodes,)
        return slowdown(shape.replicas, *measured) / slowdown(fastest, *measured)


def replica_advice(question: ReplicaQuestion, *, draws: int = DRAWS, seed: int = 0) -> ReplicaAdvice:
    """The shape with the least wait, run and stranded GPUs; of those that hardly differ the one with fewest replicas.

    Raises ValueError for a number of GPUs out of range.
    """
    shapes = shapes_of(question.gpus)
    refused = [each for shape in shapes if (each := _impossible(shape, question)) is not None]
    out = {each.shape for each in refused}
    candidates = [shape for shape in shapes if shape not in out]
    # Of very many shapes those with many small replicas are slowest.
    refused += [
        _refusal(shape, "SHAPE_NOT_TRIED", "More shapes than are compared.") for shape in candidates[MOST_SHAPES:]
    ]
    fragmentation = Fragmentation(question.nodes, question.usual)
    estimates = [_estimate(shape, question, fragmentation, draws, seed) for shape in candidates[:MOST_SHAPES]]
    estimates.sort(key=_order)
    smallest = by_smallest_node(question.gpus, question.nodes)
    if not estimates:
        return ReplicaAdvice(question.gpus, None, tuple(refused), smallest, question.run_seconds, _none(question))
    best = min(estimates, key=lambda each: (_order(each)[:2], not _is_near(each, estimates[0]), each.shape.replicas))
    estimates.remove(best)
    estimates.insert(0, best)
    selected = replace(best, reason=_why_selected(best, estimates[1:]))
    rejected = [replace(each, reason=_why_not(each, best)) for each in estimates[1:]]
    return ReplicaAdvice(question.gpus, selected, (*rejected, *refused), smallest, question.run_seconds)


def _impossible(shape: Shape, question: ReplicaQuestion) -> ShapeEstimate | None:
    largest = max(node.gpus for node in question.nodes)
    if shape.gpus > largest:
        text = f"No node has {counted(shape.gpus, 'GPU')}; the largest has {largest}."
        return _refusal(shape, "SHAPE_LARGER_THAN_NODE", text, {"largest_node_gpus": largest})
    if not can_ever_fit(shape, question.nodes):
        room = sum(node.gpus // shape.gpus for node in question.nodes)
        text = f"All nodes together have room for {room} of its {counted(shape.replicas, 'replica')}, were they empty."
        return _refusal(shape, "SHAPE_NEVER_FITS", text, {"replicas_with_room": room})
    if question.speed(shape) is None:
        text = f"The model does not fit in memory with {counted(shape.gpus, 'GPU')} on a node."
        return _refusal(shape, "SHAPE_OUT_OF_MEMORY", text)
    return None


def _refusal(
    shape: Shape, code: str, message: str, numbers: Mapping[str, float | int | str] | None = None
) -> ShapeEstimate:
    return ShapeEstimate(shape, False, Reason(code, message, numbers or {}))


def _estimate(
    shape: Shape, question: ReplicaQuestion, fragmentation: Fragmentation, draws: int, seed: int
) -> ShapeEstimate:
    ratio = question.speed(shape)
    assert ratio is not None, "shapes that do not fit in memory are left out"
    now = fits_now(shape, question.nodes)
    wait_s, high_s = _wait(shape, question, draws, seed)
    stranded = fragmentation.stranded_gpus(shape) if now else None
    cost = (stranded or 0.0) / shape.total * STRANDED_WEIGHT
    score = None if wait_s is None else wait_s + question.run_seconds * (ratio + cost)
    step_s = None if question.step_seconds is None else question.step_seconds[shape.gpus]
    pending = Reason("SHAPE_SELECTED", "")
    return ShapeEstimate(shape, now, pending, wait_s, high_s, ratio, step_s, stranded, score)


def _wait(shape: Shape, question: ReplicaQuestion, draws: int, seed: int) -> tuple[float | None, float | None]:
    """p50 and p90 of the seconds until it starts. What waits already is ahead of it."""
    ahead = question.model.queue
    if fits_now(shape, question.nodes) and not ahead:
        return 0.0, 0.0
    if not question.model.running and not ahead:
        return None, None
    own = QueuedGpus(NAME, shape.replicas, shape.gpus * int(WHOLE_GPU))
    rooms = tuple(NodeRoom(node.name, node.free * int(WHOLE_GPU)) for node in question.nodes)
    model = replace(question.model, nodes=rooms, queue=(*ahead, own))
    start = start_times(model, NAME, question.run_times, np.random.default_rng(seed), draws)
    return start.p50_s, start.p90_s


def _is_near(estimate: ShapeEstimate, first: ShapeEstimate) -> bool:
    """Whether it hardly differs from the one with the lowest score; never where waits are not known."""
    if estimate.score_seconds is None or first.score_seconds is None:
        return estimate is first
    return estimate.score_seconds <= first.score_seconds * (1 + NEAR)


def _order(estimate: ShapeEstimate) -> tuple[bool, bool, float, float, int]:
    """Known waits first; where none is known, what fits now, then what is fastest."""
    score = estimate.score_seconds
    if score is None:
        return True, not estimate.fits_now, math.inf, estimate.slowdown or math.inf, estimate.shape.replicas
    return False, False, score, estimate.slowdown or math.inf, estimate.shape.replicas


def _why_selected(best: ShapeEstimate, others: Sequence[ShapeEstimate]) -> Reason:
    numbers = {"replicas": best.shape.replicas, "gpus_per_replica": best.shape.gpus}
    if best.wait_seconds is None:
        return Reason("SHAPE_SELECTED", _UNKNOWN_WAIT + " It is the fastest.", numbers)
    start = "It fits now" if best.wait_seconds < 1 else f"It starts in about {format_span(best.wait_seconds)}"
    speed = (
        "and no shape computes faster"
        if (best.slowdown or 1.0) <= min([1.0, *(each.slowdown or 1.0 for each in others)]) + 1e-9
        else f"and its steps take {(best.slowdown or 1.0) - 1:.0%} longer than those of the fastest shape"
    )
    return Reason("SHAPE_SELECTED", f"{start}, {speed}.", numbers)


def _why_not(estimate: ShapeEstimate, best: ShapeEstimate) -> Reason:
    """The largest of what it costs more than the selected shape."""
    if estimate.wait_seconds is None:
        return Reason("SHAPE_WAIT_UNKNOWN", _UNKNOWN_WAIT)
    waits = estimate.wait_seconds - (best.wait_seconds or 0.0)
    runs = (estimate.slowdown or 1.0) - (best.slowdown or 1.0)
    strands = (estimate.stranded_gpus or 0.0) - (best.stranded_gpus or 0.0)
    numbers = {"wait_more_seconds": waits, "slower_by": runs, "stranded_gpus_more": strands}
    score = (estimate.score_seconds or 0.0) - (best.score_seconds or 0.0)
    if score < NEAR * (best.score_seconds or 0.0):
        text = "It hardly differs from the selected one, which has fewer replicas."
        return Reason("SHAPE_EQUAL", text, numbers)
    run_s = max(0.0, score - max(0.0, waits))
    if waits > 1 and waits >= run_s:
        now = "" if estimate.fits_now else ", as it does not fit now"
        return Reason("SHAPE_WAITS", f"It would start {format_span(waits)} later{now}.", numbers)
    if runs > 1e-6:
        return Reason("SHAPE_SLOWER", f"Its steps would take {runs / (best.slowdown or 1.0):.0%} longer.", numbers)
    text = f"It would leave {strands:.2g} GPUs more of which the usual pods could make no use."
    return Reason("SHAPE_STRANDS", text, numbers)


def _none(question: ReplicaQuestion) -> tuple[Reason, ...]:
    total = sum(node.gpus for node in question.nodes)
    text = f"{question.gpus} GPUs have no shape that these nodes, with {total} GPUs in all, could ever hold."
    return (Reason("NO_SHAPE", text, {"gpus": question.gpus, "gpus_of_nodes": total}),)
