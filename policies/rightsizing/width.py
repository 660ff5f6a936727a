"""How many workers an elastic training job should have: one more, one fewer, or why as many as it has.

A further worker is worth its GPUs where it brings ``threshold`` of what one brought before (the marginal efficiency of
the useful number of GPUs, decision 79). That is the rule before the change, by what is known of how the job scales, and
the rule of the watch after it: ``most_cost`` turns it into the most that GPU time for a sample may grow by.

A change of width starts the job's work again from its last checkpoint. What that costs is held against what the change
brings over the rest of the job, and both are told.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kopt.core.reason import Reason
from kopt.core.units import counted, format_span
from kopt.core.workload.rightsizing import Batch, Outcome, WidthChange, WidthRecord
from kopt.policies.rightsizing.step_times import StepTime
from kopt.policies.rightsizing.watch import WatchSettings


@dataclass(frozen=True)
class WidthSettings:
    threshold: float = 0.7
    """Marginal efficiency below which a worker is not worth its GPUs."""
    most_restart: float = 0.1
    """Share of the time that is left which starting again may cost."""
    for_others: float = 0.5
    """By how much GPU time for a sample may grow where a worker was given to others; more is a job that is broken."""


@dataclass(frozen=True)
class Elastic:
    """A job whose number of workers may change between ``least`` and ``most``; ``gpus`` are those of one worker.
    ``batch`` is None where nothing says what becomes of it."""

    width: int
    least: int
    most: int
    gpus: int
    batch: Batch | None


@dataclass(frozen=True)
class Room:
    """``workers``: how many more free GPUs and quotas have room for. ``queued``: workloads that are pending, of which
    ``helped`` could run on the GPUs of the job's last worker."""

    workers: int
    queued: int = 0
    helped: int = 0


@dataclass(frozen=True)
class Rest:
    """What is left of a job. ``restart_gpu_s``: GPU seconds that starting again costs: since the last checkpoint, and
    the start itself. None where nothing tells them."""

    steps: int | None
    step_seconds: float | None
    restart_gpu_s: float | None


@dataclass(frozen=True)
class RestartSum:
    """Seconds of the job; positive is sooner. ``gpu_s`` are GPU seconds that are given back."""

    restart_s: float
    before_s: float
    after_s: float
    gpu_s: float
    supposed: bool
    """Nothing is known of how the job scales: the least that would be kept is counted."""

    @property
    def sooner_s(self) -> float:
        return self.before_s - self.after_s - self.restart_s

    @property
    def text(self) -> str:
        """For people: both sides of the sum."""
        whole = f"{_span(self.before_s)} left; then {_span(self.after_s)}, and {_span(self.restart_s)} to start again"
        ends = f"it ends {_span(self.sooner_s)} {'sooner' if self.sooner_s >= 0 else 'later'}"
        gpus = f"{abs(self.gpu_s) / 3600:.1f} GPU hours {'fewer' if self.gpu_s >= 0 else 'more'}"
        return f"{whole}: {ends}, for {gpus}{', at the least' if self.supposed else ''}"


@dataclass(frozen=True)
class WidthProposal:
    """``allowed``: what GPU time for a sample may grow by (negative: has to fall by) for the change to stay.
    ``for_others``: its GPUs are given to workloads that are pending."""

    change: WidthChange
    allowed: float
    rest: RestartSum
    reason: Reason
    for_others: bool = False


@dataclass(frozen=True)
class _Wanted:
    width: int
    reason: Reason
    for_others: bool = False


def propose_width(
    job: Elastic,
    speeds: Mapping[int, float],
    room: Room,
    rest: Rest,
    *,
    target: int | None = None,
    settings: WidthSettings = WidthSettings(),
) -> WidthProposal | Reason:
    """One worker more or fewer, or why not. ``speeds``: samples a second by width, in any unit, as far as they are
    known. ``target``: the width that somebody asks for, to be tried where nothing is known of how the job scales."""
    if job.batch is None:
        text = "Nothing says what becomes of the batch of a step: annotation kaiwo.ai/elastic-batch, or --batch."
        return Reason("BATCH_UNKNOWN", text)
    if not job.least <= job.width <= job.most:
        text = f"It has {job.width} workers, and says that it may have {job.least} to {job.most}."
        return Reason("WIDTH_OUT_OF_BOUNDS", text)
    wanted = _asked(job, room, target) if target is not None else _wanted(job, speeds, room, settings)
    if isinstance(wanted, Reason):
        return wanted
    restarted = _restart(job, speeds, wanted, rest, settings)
    if isinstance(restarted, Reason):
        return restarted
    change = WidthChange(job.width, wanted.width, job.batch)
    allowed = settings.for_others if wanted.for_others else most_cost(change, settings.threshold)
    reason = replace(wanted.reason, message=f"{wanted.reason.message} {restarted.text}.")
    return WidthProposal(change, allowed, restarted, reason, wanted.for_others)


def most_cost(change: WidthChange, threshold: float) -> float:
    """By how much GPU time for a sample may grow, as a ratio less one."""
    before, after = change.before, change.after
    if after > before:
        return after / (before + threshold * (after - before)) - 1
    return (after + threshold * (before - after)) / before - 1


def watch_settings(
    change: WidthChange, allowed: float, settings: WatchSettings, *, for_others: bool = False
) -> WatchSettings:
    """How a change is watched: kept only where it is shown to cost less than ``allowed``; ``for_others``: undone only
    where it is shown to cost more, or breaks.

    A wider job may do a little more with each GPU (with a fixed batch each has fewer samples to hold); where it looks
    like more than the tolerance, steps are others."""
    wider = change.after > change.before
    return replace(
        settings,
        allowed=allowed,
        tolerance=0.0,
        of_samples=True,
        has_to_be_shown=not for_others,
        most_gained=settings.tolerance if wider else None,
    )


def for_each_sample(times: Sequence[StepTime], applied_s: float, change: WidthChange) -> list[StepTime]:
    """Step times as what they say of GPU time for a sample: with a fixed batch times the width, before and after; with
    one for each worker as they are."""
    if change.batch is Batch.PER_WORKER:
        return list(times)
    return [
        replace(each, seconds=each.seconds * (change.before if each.end_s <= applied_s else change.after))
        for each in times
    ]


def speed(width: int, step_seconds: float, batch: Batch) -> float:
    """Samples a second, where a worker's batch, or the fixed one, is 1."""
    return (width if batch is Batch.PER_WORKER else 1) / step_seconds


def own_speeds(history: Sequence[WidthRecord], batch: Batch) -> dict[int, float]:
    """Of the job's own runs, by its history (the newest first): the newest counts, and what was measured before an
    older change is scaled by the width that both share."""
    result: dict[int, float] = {}
    for record in history:
        change = record.resize
        if record.step_seconds is None or record.outcome is Outcome.OPEN or change.batch is not batch:
            continue
        pair = [(change.before, record.step_seconds[0]), (change.after, record.step_seconds[1])]
        measured = {width: speed(width, seconds, batch) for width, seconds in pair}
        if not all(map(_is_speed, measured.values())):
            continue
        shared = next((width for width in measured if width in result), None)
        if result and shared is None:
            continue
        factor = 1.0 if shared is None else result[shared] / measured[shared]
        result = {width: scaled for width, value in measured.items() if _is_speed(scaled := value * factor)} | result
    return result


def _is_speed(value: float) -> bool:
    return 0 < value < math.inf


def marginal_efficiency(speeds: Mapping[int, float], fewer: int, more: int) -> float | None:
    """What each worker from ``fewer`` to ``more`` brings, as a share of what one of ``fewer`` does; None where a speed
    is not known."""
    first, last = speeds.get(fewer), speeds.get(more)
    if not first or not last or fewer < 1:
        return None
    return (last - first) / (more - fewer) / (first / fewer)


def _asked(job: Elastic, room: Room, target: int) -> _Wanted | Reason:
    if abs(target - job.width) != 1:
        text = f"It has {job.width} workers; widths change by one at a time, and {target} is not beside it."
        return Reason("WIDTH_STEP", text)
    if not job.least <= target <= job.most:
        text = f"{target} workers were asked for, and the job says that it may have {job.least} to {job.most}."
        return Reason("WIDTH_OUT_OF_BOUNDS", text)
    why = no_room(job.gpus, room) if target > job.width else None
    asked = Reason("WIDTH_ASKED", f"{target} workers were asked for.")
    return why or _Wanted(target, asked, for_others=target < job.width and room.helped > 0)


def _wanted(job: Elastic, speeds: Mapping[int, float], room: Room, settings: WidthSettings) -> _Wanted | Reason:
    width, least = job.width, settings.threshold
    last = marginal_efficiency(speeds, width - 1, width)
    if width > job.least and room.helped:
        text = f"{_are_pending(room.helped)} that could run on its last worker's GPUs, and it may have fewer workers."
        return _Wanted(width - 1, Reason("OTHERS_QUEUE", text, {"queued": room.helped}), for_others=True)
    if width > job.least and last is not None and last < least:
        text = f"Its last worker brings {last:.0%} of what one brings, less than {least:.0%}."
        return _Wanted(width - 1, Reason("WORKER_NOT_USEFUL", text, {"marginal_efficiency": last}))
    if width >= job.most:
        return Reason("WIDTH_IS_RIGHT", f"It has {width} workers, the most that it may have.")
    if why := no_room(job.gpus, room):
        return why
    following = marginal_efficiency(speeds, width, width + 1)
    if following is None:
        text = f"Nothing is known of how it scales to {width + 1} workers; --width {width + 1} tries it."
        return Reason("SCALING_UNKNOWN", text)
    if following < least:
        text = f"One worker more would bring {following:.0%} of what one brings, less than {least:.0%}."
        return Reason("WIDTH_IS_RIGHT", text, {"marginal_efficiency": following})
    text = f"One worker more brings {following:.0%} of what one brings, and GPUs idle."
    return _Wanted(width + 1, Reason("WORKER_USEFUL", text, {"marginal_efficiency": following}))


def no_room(gpus: int, room: Room) -> Reason | None:
    """Why no further worker of so many GPUs may be started; None where one may."""
    if room.queued:
        text = f"{_are_pending(room.queued)}: idle GPUs are theirs first."
        return Reason("OTHERS_QUEUE", text, {"queued": room.queued})
    if room.workers < 1:
        text = f"No node or quota has room for a worker more of {counted(gpus, 'GPU')}."
        return Reason("NO_IDLE_GPUS", text)
    return None


def _are_pending(number: int) -> str:
    return f"{counted(number, 'workload')} {'is' if number == 1 else 'are'} pending"


def _restart(
    job: Elastic, speeds: Mapping[int, float], wanted: _Wanted, rest: Rest, settings: WidthSettings
) -> RestartSum | Reason:
    """The sum, or why the restart is not worth it."""
    if rest.steps is None or not rest.step_seconds or rest.restart_gpu_s is None:
        text = "Nothing tells how much is left of it, or what starting again costs: the log agent writes both on pods."
        return Reason("REST_UNKNOWN", text)
    before_s = rest.steps * rest.step_seconds
    known = job.width in speeds and wanted.width in speeds
    ratio = speeds[wanted.width] / speeds[job.width] if known else _least_speed(job.width, wanted.width, settings)
    after_s = before_s / ratio if ratio > 0 else float("inf")
    if before_s <= 0:
        return Reason("RESTART_NOT_WORTH_IT", "It would not be worth starting again: no steps are left.")
    restart_s = rest.restart_gpu_s / (job.width * job.gpus)
    gpu_s = job.gpus * (before_s * job.width - (after_s + restart_s) * wanted.width)
    result = RestartSum(restart_s, before_s, after_s, gpu_s, supposed=not known)
    narrower = wanted.width < job.width
    gains = wanted.for_others or (result.gpu_s > 0 if narrower and known else narrower or result.sooner_s > 0)
    if restart_s > settings.most_restart * before_s or not gains:
        numbers = {"restart_s": restart_s, "before_s": before_s, "after_s": after_s, "gpu_s": gpu_s}
        return Reason("RESTART_NOT_WORTH_IT", f"It would not be worth starting again: {result.text}.", numbers)
    return result


def _least_speed(before: int, after: int, settings: WidthSettings) -> float:
    """Where nothing is known: what a wider job has to bring to stay; a narrower one loses what it gives up."""
    return 1 + settings.threshold * (after - before) / before if after > before else after / before


def _span(seconds: float) -> str:
    return "for ever" if seconds == float("inf") else format_span(abs(seconds))
