"""The smallest change of each kind with which a workload fits: tried, never guessed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kopt.core.scheduling.diagnosis import Binding, Change, ChangeKind
from kopt.core.units import GIB, MIB, WHOLE_GPU, Bytes, counted, format_bytes, format_gpus
from kopt.policies.diagnosis.ending import ended
from kopt.policies.diagnosis.fitting import fits, open_rows
from kopt.policies.diagnosis.situation import Bools, PodShape, Rule, RunningColumns, Situation

_MOST_SPARED = 24
"""Of more workloads that would have to end, none is tried to be spared."""
_MOST_NAMES = 3
_LEAST_SHARE = 10
"""A request for CPU or memory is not cut to less than a tenth: no workload runs on nothing."""
Candidate = tuple[Change, Situation]


def smallest_changes(situation: Situation, ends_s: Mapping[str, float] | None = None) -> tuple[Change, ...]:
    """Changes with each of which it fits, in the order of ``ChangeKind``; empty where it fits as it is.

    Where no single change of the request or its rules suffices, a dropped rule is combined with a smaller request.
    ``ends_s``: expected seconds until running workloads end, by name; without them as few as possible have to end.
    """
    if fits(situation).ok:
        return ()
    changes = [change for change, _ in _single(situation)]
    if not changes:
        changes = list(_combined(situation))
    waits = _wait(situation, ends_s or {})
    changes += [waits] if waits else []
    order = list(ChangeKind)
    return tuple(sorted(changes, key=lambda change: order.index(change.kind)))


def _single(situation: Situation) -> Iterator[Candidate]:
    yield from _relaxed(situation)
    for name, side in situation.queues.items():
        changed = replace(situation, kueue=side)
        if fits(changed).ok:
            yield _change(ChangeKind.OTHER_QUEUE, f"Submit it to queue {name}.", after=name), changed
    yield from _smaller(situation)


def _combined(situation: Situation) -> Iterator[Change]:
    """A rule less and a smaller request; the first pair of each kind of request."""
    kinds = set[ChangeKind]()
    for first, changed in _candidates(situation):
        for second, _ in _smaller(changed):
            if second.kind not in kinds:
                kinds.add(second.kind)
                message = f"{first.message.removesuffix('.')}, and {second.message[0].lower()}{second.message[1:]}"
                yield replace(second, message=message, rule=first.rule)


def _relaxed(situation: Situation) -> Iterator[Candidate]:
    """Without one of its own rules, or with another value in it."""
    yield from (candidate for candidate in _candidates(situation) if fits(candidate[1]).ok)


def _candidates(situation: Situation) -> Iterator[Candidate]:
    for index, shape in enumerate(situation.shapes):
        for rule in shape.rules:
            if rule.owned and (rule.excluded.any() or rule.flavors):
                yield from _without(situation, index, shape, rule)


def _without(situation: Situation, index: int, shape: PodShape, rule: Rule) -> Iterator[Candidate]:
    others = tuple(other for other in shape.rules if other is not rule)
    for value, (excluded, flavors) in rule.values.items():
        changed = replace(rule, excluded=excluded, flavors=flavors, values={})
        label = rule.name.partition("=")[0]
        message = f"Select {label}={value} instead of {rule.name}."
        yield (
            _change(ChangeKind.OTHER_VALUE, message, shape.name, rule=rule.name, after=value),
            situation.with_shape(index, replace(shape, rules=(*others, changed))),
        )
    if rule.code is Binding.TAINT:
        change = _change(ChangeKind.TOLERATE, f"Tolerate the taint {rule.name}.", shape.name, rule=rule.name)
    else:
        phrase = {
            Binding.NODE_SELECTOR: f"Select no {rule.name}",
            Binding.NODE_AFFINITY: f"Drop the node affinity {rule.name}",
            Binding.POD_AFFINITY: f"Drop the pod affinity {rule.name}",
            Binding.POD_ANTI_AFFINITY: f"Drop the pod anti-affinity {rule.name}",
        }.get(rule.code, f"Drop {rule.name}")
        change = _change(ChangeKind.DROP_RULE, f"{phrase}.", shape.name, rule=rule.name)
    yield change, situation.with_shape(index, replace(shape, rules=others))


def _smaller(situation: Situation) -> Iterator[Candidate]:
    """With less of one thing, as much of it as fits."""
    for index, shape in enumerate(situation.shapes):
        for attempt in (_fewer_gpus, _fewer_pods, _less_cpu, _less_memory):
            if (candidate := attempt(situation, index, shape)) is not None:
                yield candidate


def _fewer_gpus(situation: Situation, index: int, shape: PodShape) -> Candidate | None:
    request = shape.request
    if request.gpus.count < 2 or request.gpus.share != WHOLE_GPU:
        return None

    def changed(count: int) -> Situation:
        smaller = replace(request, gpus=replace(request.gpus, count=count))
        return situation.with_shape(index, replace(shape, request=smaller))

    count = _largest(1, request.gpus.count - 1, lambda value: fits(changed(value)).ok)
    if count is None:
        return None
    per_pod = " per pod" if shape.count > 1 else ""
    message = f"Request {counted(count, 'GPU')}{per_pod} instead of {request.gpus.count}."
    change = _change(ChangeKind.FEWER_GPUS, message, shape.name, before=str(request.gpus.count), after=str(count))
    return change, changed(count)


def _fewer_pods(situation: Situation, index: int, shape: PodShape) -> Candidate | None:
    if shape.least < 2:
        return None

    def changed(pods: int) -> Situation:
        return situation.with_shape(index, replace(shape, count=pods, least=pods))

    pods = _largest(1, shape.least - 1, lambda value: fits(changed(value)).ok)
    if pods is None:
        return None
    message = f"Start with {counted(pods, 'pod')} instead of {shape.least}."
    change = _change(ChangeKind.FEWER_PODS, message, shape.name, before=str(shape.least), after=str(pods))
    return change, changed(pods)


def _less_cpu(situation: Situation, index: int, shape: PodShape) -> Candidate | None:
    request, step = shape.request, 100

    def changed(steps: int) -> Situation:
        return situation.with_shape(index, replace(shape, request=replace(request, cpu_milli=steps * step)))

    steps = _amount(request.cpu_milli, step, lambda value: fits(changed(value)).ok)
    if steps is None:
        return None
    before, after = format_gpus(request.cpu_milli), format_gpus(steps * step)
    message = f"Request {after} CPUs instead of {before}."
    return _change(ChangeKind.LESS_CPU, message, shape.name, before=before, after=after), changed(steps)


def _less_memory(situation: Situation, index: int, shape: PodShape) -> Candidate | None:
    request = shape.request
    step = GIB if request.memory_bytes >= 8 * GIB else 64 * MIB

    def changed(steps: int) -> Situation:
        smaller = replace(request, memory_bytes=Bytes(steps * step))
        return situation.with_shape(index, replace(shape, request=smaller))

    steps = _amount(int(request.memory_bytes), step, lambda value: fits(changed(value)).ok)
    if steps is None:
        return None
    after = f"{steps}Gi" if step == GIB else f"{steps * 64}Mi"
    message = f"Request {format_bytes(steps * step)} of memory instead of {format_bytes(request.memory_bytes)}."
    change = _change(ChangeKind.LESS_MEMORY, message, shape.name, before=str(int(request.memory_bytes)), after=after)
    return change, changed(steps)


def _amount(before: int, step: int, is_enough: Callable[[int], bool]) -> int | None:
    low, high = max(1, -(-before // (_LEAST_SHARE * step))), (before - 1) // step
    return _largest(low, high, is_enough) if before else None


def _largest(low: int, high: int, is_enough: Callable[[int], bool]) -> int | None:
    """The largest number that is enough, where every smaller one is, too; None where not even ``low`` is."""
    if low > high or not is_enough(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_enough(middle) else (low, middle - 1)
    return low


def _wait(situation: Situation, ends_s: Mapping[str, float]) -> Change | None:
    """Until some of what runs has ended: the first to end as far as that is known, else the fewest."""
    names = _end_order(situation, ends_s)

    def is_enough(some: Sequence[str]) -> bool:
        with ended(situation, set(some)) as after:
            return fits(after).ok

    # Doubling first: most often a few are enough, and ending thousands takes long.
    low, high = 1, 1
    while high < len(names) and not is_enough(names[:high]):
        low, high = high + 1, 2 * high
    high = min(high, len(names))
    if not names or (high == len(names) and not is_enough(names)):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(names[:middle]) else (middle + 1, high)
    needed = names[:low]
    for name in reversed(names[: low - 1]) if low <= _MOST_SPARED else ():
        if is_enough(without := [other for other in needed if other != name]):
            needed = without
    more = f" and {len(needed) - _MOST_NAMES} more" if len(needed) > _MOST_NAMES else ""
    verb = "has" if len(needed) == 1 else "have"
    message = f"Wait: it fits when {', '.join(needed[:_MOST_NAMES])}{more} {verb} ended."
    return replace(_change(ChangeKind.WAIT, message), names=tuple(needed))


def _end_order(situation: Situation, ends_s: Mapping[str, float]) -> list[str]:
    """Of what is on nodes that are open to it, has quota that it could get, or counts against its limits: what is
    ending already, then by expected end; without one, from the nodes with the most free GPUs on."""
    columns = situation.columns or RunningColumns(situation.running)
    relevant = np.flatnonzero(_relevant(situation, columns))
    names = [columns.names[index] for index in relevant.tolist()]
    rows, fleet = columns.rows[relevant], situation.fleet
    free = np.zeros(1) if fleet is None else fleet.gpu_free_milli.sum(axis=1)
    if fleet is None:
        rows[:] = -1
    most = np.where(rows >= 0, free[rows], 0)
    ends = np.array([ends_s.get(name, np.inf) for name in names]) if ends_s else np.full(len(names), np.inf)
    order = np.lexsort((-columns.milli_gpus[relevant], rows, -most, ends, ~columns.terminating[relevant]))
    return [names[index] for index in order.tolist()]


def _relevant(situation: Situation, columns: RunningColumns) -> Bools:
    """(workloads,)."""
    kueue, fleet = situation.kueue, situation.fleet
    if fleet is None:
        result: Bools = np.zeros(len(columns.names), np.bool_)
    else:
        is_open = [open_rows(situation, shape, fleet) for shape in situation.shapes]
        result = columns.on(np.logical_or.reduce([np.zeros(fleet.rows, np.bool_), *is_open]))
    tree = set(kueue.tree.lineage(kueue.queue)[-1:]) if kueue is not None else set[str]()
    sharing = {
        item.name
        for item in (kueue.admitted if kueue is not None else ())
        if kueue is not None and tree & set(kueue.tree.lineage(item.queue))
    }
    limited = {ceiling.queue for ceiling in situation.ceilings}
    if sharing or limited:
        for index, workload in enumerate(columns.workloads):
            result[index] |= workload.name in sharing or not limited.isdisjoint(workload.queues)
    return result


def _change(
    kind: ChangeKind, message: str, pod_set: str = "", *, rule: str = "", before: str = "", after: str = ""
) -> Change:
    return Change(kind, message, pod_set, rule, before, after, verified=True)
