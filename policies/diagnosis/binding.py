"""Which constraints bind: those that would have to be relaxed for a workload to fit."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from kopt.core.scheduling.cluster import GpuRequest
from kopt.core.scheduling.diagnosis import Cause
from kopt.core.units import Bytes
from kopt.policies.diagnosis import sentences
from kopt.policies.diagnosis.fitting import CPU, GPU, MEMORY, Fit, fits, node_room, open_rows, pods_per_row
from kopt.policies.diagnosis.quota_binding import quota_causes
from kopt.policies.diagnosis.sentences import Shortage
from kopt.policies.diagnosis.situation import PodShape, Rule, Situation
from kopt.policies.placement.request import free_enough

_MOST_RULES = 8
"""Pairs of more rules are not tried."""


def binding_constraints(situation: Situation, fit: Fit | None = None) -> tuple[Cause, ...]:
    """What binds, first what was asked first: quota, the limits of queues, nodes. ``FITS_NOW`` where nothing does."""
    fit = fit or fits(situation)
    causes = [*quota_causes(situation, fit.assignment)] if fit.assignment is not None else []
    causes += [sentences.ceiling(ceiling, situation) for ceiling in fit.exceeded]
    if not causes:
        for index, shape in enumerate(situation.shapes):
            if fit.room[index] < shape.least:
                causes += _nodes(situation, index, fit)
    return tuple(dict.fromkeys(causes)) or (sentences.fits_now(situation),)


def _nodes(situation: Situation, index: int, fit: Fit) -> Iterator[Cause]:
    """Of nodes for one shape. Where rules leave no node they come first; where they leave some, what these lack."""
    shape, fleet = situation.shapes[index], situation.fleet
    assert fleet is not None, "room is short only where nodes are known"
    if shape.resource and not fleet.gpu_count.any():
        yield sentences.absent(shape)
        return
    resources = resources_of(shape)
    is_enough = _Enough(situation, index, fit)
    helping = _helping(shape.rules, is_enough)
    if is_enough(returned=resources):
        shortages = [_shortage(situation, index, fit, name) for name in _in_use(resources, is_enough)]
        # First what alone is missing on the most nodes.
        yield from map(sentences.in_use, sorted(shortages, key=lambda shortage: -shortage.nodes))
        yield from (sentences.rule(rule) for (rule,) in helping)
        return
    remaining = open_rows(situation, shape, fleet, assignment=fit.assignment).any()
    if remaining:
        yield from _too_large(situation, index, fit)
    if helping:
        yield from (sentences.rule(rule) for rules in helping for rule in rules)
        return
    for rules in _helping(shape.rules, is_enough, returned=resources, most=2):
        yield from (sentences.rule(rule) for rule in rules)
        opened = replace(shape, rules=tuple(rule for rule in shape.rules if rule not in rules))
        changed = situation.with_shape(index, opened)
        for resource in _in_use(resources, _Enough(changed, index, fit)):
            yield sentences.in_use(_shortage(changed, index, fit, resource))
        return
    if not remaining:
        opened = replace(shape, rules=())
        yield from (sentences.rule(rule) for rule in shape.rules if rule.excluded.any())
        yield from _too_large(situation.with_shape(index, opened), index, fit)


class _Enough:
    """Whether a shape has room with some of its constraints relaxed."""

    def __init__(self, situation: Situation, index: int, fit: Fit) -> None:
        self.situation, self.index, self.fit = situation, index, fit

    def __call__(self, *, without: Sequence[Rule] = (), returned: Sequence[str] = ()) -> bool:
        room = node_room(self.situation, assignment=self.fit.assignment, without=without, returned=returned)
        return room[self.index] >= self.situation.shapes[self.index].least


def resources_of(shape: PodShape) -> tuple[str, ...]:
    """What a shape requests of nodes."""
    names = [GPU] if shape.request.gpus.count else []
    names += [CPU] if shape.request.cpu_milli else []
    names += [MEMORY] if shape.request.memory_bytes else []
    return (*names, *(limit.resource for limit in shape.limits))


def _in_use(resources: Sequence[str], is_enough: _Enough) -> list[str]:
    """The resources of which too much is in use: each alone, else those that are all needed."""
    alone = [name for name in resources if is_enough(returned=(name,))]
    return alone or [
        name for name in resources if not is_enough(returned=[other for other in resources if other != name])
    ]


def _helping(
    rules: Sequence[Rule], is_enough: _Enough, returned: Sequence[str] = (), most: int = 1
) -> list[tuple[Rule, ...]]:
    """The fewest rules without which there is room, nodes' own conditions before what the workload says."""
    excluding = [rule for rule in rules if rule.excluded.any()]
    excluding.sort(key=lambda rule: rule.owned)
    for number in range(1, most + 1 if len(excluding) <= _MOST_RULES else 2):
        if result := [some for some in combinations(excluding, number) if is_enough(without=some, returned=returned)]:
            return result
    return []


def _too_large(situation: Situation, index: int, fit: Fit) -> Iterator[Cause]:
    """What no open node has, even if nothing ran there; of gangs, what all of them together do not have."""
    shape, yielded = situation.shapes[index], False
    for resource in resources_of(shape):
        changed = situation.with_shape(index, _lacking(shape, resource))
        if _Enough(changed, index, fit)(returned=resources_of(shape)):
            yielded = True
            yield sentences.too_large(_shortage(situation, index, fit, resource, empty=True))
    if not yielded and shape.request.gpus.count:
        yield sentences.too_large(_shortage(situation, index, fit, GPU, empty=True))


def _lacking(shape: PodShape, resource: str) -> PodShape:
    """A shape that does not request a resource."""
    request = shape.request
    if resource == GPU:
        return replace(shape, request=replace(request, gpus=GpuRequest()))
    if resource == CPU:
        return replace(shape, request=replace(request, cpu_milli=0))
    if resource == MEMORY:
        return replace(shape, request=replace(request, memory_bytes=Bytes(0)))
    return replace(shape, limits=tuple(limit for limit in shape.limits if limit.resource != resource))


def _shortage(situation: Situation, index: int, fit: Fit, resource: str, *, empty: bool = False) -> Shortage:
    """How much of a resource the best open node has, and all of them together."""
    shape, fleet = situation.shapes[index], situation.empty if empty else situation.fleet
    assert fleet is not None, "there are nodes"
    rows = open_rows(situation, shape, fleet, assignment=fit.assignment)
    if resource == GPU:
        array, wanted = free_enough(fleet, shape.request).sum(axis=1), shape.request.gpus.count
    elif resource == CPU:
        array, wanted = fleet.cpu_free_milli, shape.request.cpu_milli
    elif resource == MEMORY:
        array, wanted = fleet.memory_free_bytes, int(shape.request.memory_bytes)
    else:
        limit = next(limit for limit in shape.limits if limit.resource == resource)
        array, wanted = limit.total if empty else limit.free, limit.wanted
    # What is free on nodes that lack something else is of no use; where all do, all of it counts.
    useful = rows & (pods_per_row(_lacking(shape, resource), fleet, rows) > 0)
    rows = useful if useful.any() else rows
    array = array.clip(min=0)[rows]
    most, total = (int(array.max()), int(array.sum())) if len(array) else (0, 0)
    changed = situation.with_shape(index, shape)
    returned = resources_of(shape) if empty else ()
    pods = node_room(changed, assignment=fit.assignment, returned=returned)[index]
    return Shortage(shape, resource, wanted, most, total, pods, nodes=int(rows.sum()))
