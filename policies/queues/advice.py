"""Nominal quotas from what queues demanded: the same GPUs, divided among siblings so that least is above a quota.

What a queue uses above its quota is borrowed and may be reclaimed, and what it demands and does not get waits. A GPU of
quota is worth the share of the time in which its queue demands that GPU, and no queue needs the second more often than
the first. So dividing the GPUs one by one, each to the queue that needs it most often, minimises the expected demand
above quotas (Federgruen and Groenevelt, "The greedy procedure for resource allocation problems", Operations Research
34, 1986). Older hours count less. How sure that is comes from balanced half-samples of whole days (McCarthy,
"Pseudo-replication: half samples", 1969), as hours of one day depend on each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from kopt.core.reason import Reason
from kopt.core.scheduling.queue_tree import GPU
from kopt.core.units import counted, format_gpus

METHOD = "quota-quantiles/1"
"""The version of the method, as that of a model."""
HOUR_S, DAY_HOURS = 3600, 24
STEP = 1000
"""One GPU, in thousandths."""
_MOST_STEPS = 100_000


@dataclass(frozen=True)
class QuotaDemand:
    """A queue's quota in a pool, and what it demanded there: ``demand`` is the mean of each hour in thousandths, the
    oldest first; None where nothing is known. ``limit`` None: no limit."""

    queue: str
    pool: str
    quota: int
    demand: Sequence[int | None]
    guarantee: int = 0
    limit: int | None = None
    resource: str = GPU


@dataclass(frozen=True)
class AdviceSettings:
    """``half_life_hours``: an hour so much older counts half. What a queue demands up to the quantile ``kept`` is not
    taken from it, however much others lack: a long queue of work elsewhere is no reason to make it wait. Nor is more
    taken at once than ``most_taken`` of its quota (a GPU at least), as demand may be about to change. A division is
    advised where it is better than the present one in ``confidence`` of ``samples`` samples, by ``least_gain`` of the
    demand above quotas on the average."""

    least_days: int = 14
    half_life_hours: float = 14 * DAY_HOURS
    kept: float = 0.95
    most_taken: float = 0.25
    samples: int = 63
    confidence: float = 0.95
    least_gain: float = 0.05
    interval: tuple[float, float] = (0.05, 0.95)


@dataclass(frozen=True)
class QuotaAdvice:
    """Thousandths. ``low`` and ``high``: the interval of ``advised`` over the samples, None where none was drawn.
    ``above_before`` and ``above_after``: the share of hours in which its demand is above the quota."""

    queue: str
    pool: str
    resource: str
    quota: int
    advised: int
    low: int | None
    high: int | None
    above_before: float
    above_after: float
    reason: Reason

    @property
    def changes(self) -> bool:
        return self.advised != self.quota


def advise(siblings: Sequence[QuotaDemand], settings: AdviceSettings | None = None) -> list[QuotaAdvice]:
    """For queues of one parent in one pool, over the same hours. Their quotas keep their sum; none gets less than its
    guarantee, or more than its limit.

    Raises ValueError for demands of different lengths.
    """
    rules, demands = settings or AdviceSettings(), list(siblings)
    if len({len(leaf.demand) for leaf in demands}) > 1:
        raise ValueError("demands have to be of the same hours")
    hours = _complete_hours(demands)
    days = len({hour // DAY_HOURS for hour in hours})
    if len(demands) < 2 or days < rules.least_days:
        return [_kept(leaf, _unadvised(leaf, days, rules, len(demands)), None, None) for leaf in demands]
    newest = len(demands[0].demand)
    weights = {hour: 0.5 ** ((newest - hour) / rules.half_life_hours) for hour in hours}
    floors = [_floor(leaf, weights, rules) for leaf in demands]
    divided = divide(demands, weights, floors)
    drawn, wins = [], 0
    for sample in _samples(weights, rules):
        drawn.append(divide(demands, sample, [_floor(leaf, sample, rules) for leaf in demands]))
        wins += _above(demands, divided, sample) < _above(demands, [leaf.quota for leaf in demands], sample)
    before = _above(demands, [leaf.quota for leaf in demands], weights)
    gain = before - _above(demands, divided, weights)
    is_better = wins >= rules.confidence * len(drawn) and gain >= rules.least_gain * before > 0
    rows = zip(demands, divided, zip(*drawn, strict=True), strict=True)
    return [_advice(leaf, after if is_better else leaf.quota, of_it, weights, rules) for leaf, after, of_it in rows]


def divide(
    demands: Sequence[QuotaDemand], weights: Mapping[int, float], least: Sequence[int] | None = None
) -> list[int]:
    """The sum of the quotas, divided by ``weights`` of hours; GPUs that nobody demands stay where they are. Nobody gets
    less than ``least``, by default the guarantees."""
    floors = list(least) if least is not None else [min(leaf.guarantee, leaf.quota) for leaf in demands]
    steps = (sum(leaf.quota for leaf in demands) - sum(floors)) // STEP
    if steps > _MOST_STEPS:
        raise ValueError(f"{steps} GPUs of quota are more than can be divided")
    gains = [_gains(leaf, floor, weights, steps) for leaf, floor in zip(demands, floors, strict=True)]
    result = list(floors)

    def entry(index: int) -> tuple[float, bool, int]:
        leaf, quota = demands[index], result[index]
        if leaf.limit is not None and quota + STEP > leaf.limit:
            return 1.0, True, index
        level = (quota - floors[index]) // STEP
        gain = gains[index][level] if level < len(gains[index]) else 0.0
        return -gain, quota + STEP > leaf.quota, index

    heap = [entry(index) for index in range(len(demands))]
    heapify(heap)
    for _ in range(steps):
        rank, _, index = heap[0]
        if rank > 0:
            break
        result[index] += STEP
        heapreplace(heap, entry(index))
    return _with_rest(demands, result)


def _floor(leaf: QuotaDemand, weights: Mapping[int, float], rules: AdviceSettings) -> int:
    """Of its quota what is its own whatever others demand: its guarantee, what it demands in all but few hours, and
    all but a part at once."""
    wanted, cumulative = 0, 0.0
    total = sum(weights.values())
    for amount, weight in sorted((leaf.demand[hour] or 0, weight) for hour, weight in weights.items()):
        wanted, cumulative = amount, cumulative + weight
        if cumulative >= rules.kept * total:
            break
    whole = -(-wanted // STEP) * STEP
    reduction = max(STEP, int(leaf.quota * rules.most_taken) // STEP * STEP)
    return min(leaf.quota, max(leaf.guarantee, whole, leaf.quota - reduction))


def _with_rest(demands: Sequence[QuotaDemand], divided: list[int]) -> list[int]:
    """Parts of a GPU, and what limits leave over, go to where most has been taken from, limits kept."""
    rest = sum(leaf.quota for leaf in demands) - sum(divided)
    for index in sorted(range(len(demands)), key=lambda each: divided[each] - demands[each].quota):
        limit = demands[index].limit
        room = rest if limit is None else min(rest, max(0, limit - divided[index]))
        divided[index] += room
        rest -= room
    return divided


def _gains(leaf: QuotaDemand, floor: int, weights: Mapping[int, float], steps: int) -> list[float]:
    """How much demand each further GPU above the floor is expected to cover, in GPUs; it never grows."""
    total = sum(weights.values())
    slopes = [0.0] * (steps + 1)
    for hour, weight in weights.items():
        above = max(0, (leaf.demand[hour] or 0) - floor)
        whole, part = divmod(above, STEP)
        if whole >= steps:
            slopes[steps] += weight
        else:
            slopes[whole] += weight * (1 - part / STEP)
            slopes[whole + 1] += weight * part / STEP
    # What is demanded up to level n is covered by all GPUs below it.
    result, gain = [], total
    for level in range(steps):
        gain -= slopes[level]
        result.append(max(0.0, round(gain / total, 12)))
    return result


def _samples(weights: Mapping[int, float], rules: AdviceSettings) -> Iterable[Mapping[int, float]]:
    """Balanced halves of the days, by the columns of a Hadamard matrix; each differs from every other in a half."""
    days: dict[int, list[int]] = {}
    for hour in weights:
        days.setdefault(hour // DAY_HOURS, []).append(hour)
    names = sorted(days)
    for sample in range(1, min(rules.samples, (1 << len(names).bit_length()) - 1) + 1):
        half = [day for number, day in enumerate(names, 1) if (number & sample).bit_count() % 2 == 0]
        if half:
            yield {hour: weights[hour] for day in half for hour in days[day]}


def _above(demands: Sequence[QuotaDemand], quotas: Sequence[int], weights: Mapping[int, float]) -> float:
    """Expected demand above quotas, in GPUs."""
    total = sum(weights.values())
    return sum(
        weight * max(0, (leaf.demand[hour] or 0) - quota)
        for leaf, quota in zip(demands, quotas, strict=True)
        for hour, weight in weights.items()
    ) / (total * STEP)


def _share_above(leaf: QuotaDemand, quota: int, weights: Mapping[int, float]) -> float:
    return sum(weight for hour, weight in weights.items() if (leaf.demand[hour] or 0) > quota) / sum(weights.values())


def _complete_hours(demands: Sequence[QuotaDemand]) -> list[int]:
    """Hours of which every queue's demand is known."""
    lengths = range(len(demands[0].demand) if demands else 0)
    return [hour for hour in lengths if all(leaf.demand[hour] is not None for leaf in demands)]


def _advice(
    leaf: QuotaDemand, advised: int, drawn: Sequence[int], weights: Mapping[int, float], rules: AdviceSettings
) -> QuotaAdvice:
    ordered = sorted(drawn)
    low, high = (ordered[round(share * (len(ordered) - 1))] for share in rules.interval)
    before, after = (_share_above(leaf, quota, weights) for quota in (leaf.quota, advised))
    reason = _reason(leaf, advised, before, after)
    return QuotaAdvice(
        leaf.queue,
        leaf.pool,
        leaf.resource,
        leaf.quota,
        advised,
        min(low, advised),
        max(high, advised),
        before,
        after,
        reason,
    )


def _reason(leaf: QuotaDemand, advised: int, before: float, after: float) -> Reason:
    numbers = {"quota": leaf.quota, "advised": advised, "above_before": before, "above_after": after}
    quota = counted(format_gpus(leaf.quota), "GPU")
    often = f"It demanded more than its quota of {quota} in {before:.0%} of the hours"
    if advised == leaf.quota:
        return Reason("QUOTA_FITS", f"{often}; no other division is better on most days.", numbers)
    code = "QUOTA_SHORT" if advised > leaf.quota else "QUOTA_SPARE"
    then = f"with {format_gpus(advised)} that is {after:.0%}"
    others = "" if advised > leaf.quota else ", and queues beside it need what it has to spare more often"
    return Reason(code, f"{often}; {then}{others}.", numbers)


def _unadvised(leaf: QuotaDemand, days: int, rules: AdviceSettings, siblings: int) -> Reason:
    if siblings < 2:
        return Reason("QUOTA_ALONE", f"No other queue has quota of {leaf.pool} under the same parent to trade with.")
    message = f"Demand is known of {counted(days, 'day')}; advice takes {rules.least_days}."
    return Reason("QUOTA_HISTORY_SHORT", message, {"days": days, "least_days": rules.least_days})


def _kept(leaf: QuotaDemand, reason: Reason, low: int | None, high: int | None) -> QuotaAdvice:
    hours = {hour: 1.0 for hour, value in enumerate(leaf.demand) if value is not None}
    above = _share_above(leaf, leaf.quota, hours) if hours else 0.0
    return QuotaAdvice(leaf.queue, leaf.pool, leaf.resource, leaf.quota, leaf.quota, low, high, above, above, reason)
