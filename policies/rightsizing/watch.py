"""Whether a change may stay: kept where steps are shown not to be slower, undone where they are, or nothing is shown.

A change has to earn its place: what is not settled when the time is over is undone, so that no workload is slower ten
minutes after a change because nobody could tell.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from kopt.core.reason import Reason
from kopt.policies.rightsizing.interval import Slowdown, Summary, slowdown, summary
from kopt.policies.rightsizing.step_times import StepTime, before_and_after, longest_gap_s


class Action(StrEnum):
    KEEP = "keep"
    UNDO = "undo"
    WATCH = "watch"


@dataclass(frozen=True)
class WatchSettings:
    """Times in seconds."""

    tolerance: float = 0.03
    """Slower by less than this is not slower."""
    allowed: float = 0.0
    """What the change may cost in any case; another width: of GPU time for a sample (``width.most_cost``)."""
    of_samples: bool = False
    """Whether what is compared is GPU time for a sample, not the time of a step: reasons say so."""
    has_to_be_shown: bool = True
    """Whether what is not shown in time is undone; else only what is shown to be slower, and what breaks, is."""
    most_gained: float | None = None
    """More than this is not the change's doing: the workload does something else by now. None: the tolerance, or any
    amount where the change gives more."""
    keep_alpha: float = 0.005
    """Chance of keeping a change that makes steps slower by the tolerance."""
    undo_alpha: float = 0.1
    """Chance of undoing a change that makes no difference, because it looks slower: that only costs what it saves."""
    pauses: float = 0.05
    """What all time together, pauses included, may grow by beyond the tolerance: checkpoints fall where they fall."""
    window_s: float = 60.0
    least_s: float = 300.0
    """Nothing is kept before, as memory fills slowly."""
    deadline_s: float = 540.0
    """What is not kept by then is undone: ten minutes less the time for undoing it."""
    stalled_after: float = 8.0
    """Of the longest usual time between two observations; without a step for so long, and a window, it is undone."""
    sample_s: float = 10.0
    """Steps are observed together until they took so long."""
    baseline_s: float = 600.0
    """How much of the past it is compared with."""
    least_samples: int = 12
    """Of the baseline."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen since a change. Step times are in seconds and in order; ``silent_s`` is since the last step."""

    before: Sequence[float]
    after: Sequence[float]
    elapsed_s: float
    at_s: Sequence[float]
    """When each observation after the change began, in seconds since it took effect."""
    silent_s: float = 0.0
    usual_gap_s: float = 0.0
    """The longest time between two observations before the change."""
    restarts: int = 0
    grows: bool = False
    """Whether the change gives the workload more: then steps may become faster by it."""


@dataclass(frozen=True, slots=True)
class Since:
    """A change: when it was begun and when it took effect (Unix seconds), and how often containers restarted since.
    ``grows``: it gives the workload more."""

    applied_s: float
    effective_s: float
    restarts: int = 0
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    reason: Reason
    slowdown: Slowdown


def watched(
    times: Sequence[StepTime], last_s: float | None, since: Since, now_s: float, settings: WatchSettings
) -> Watched:
    """What step times tell of a change; ``last_s`` is when the last step was done, None before the first."""
    before, after = before_and_after(times, since.applied_s, since.effective_s)
    before = [each for each in before if each.start_s >= since.applied_s - settings.baseline_s]
    return Watched(
        [each.seconds for each in before],
        [each.seconds for each in after],
        now_s - since.effective_s,
        [each.start_s - since.effective_s for each in after],
        max(0.0, now_s - max(last_s or 0.0, since.effective_s)),
        longest_gap_s(before),
        since.restarts,
        since.grows,
    )


def evaluate(watched: Watched, settings: WatchSettings = WatchSettings()) -> Decision:
    """Of a change that took effect ``elapsed_s`` ago."""
    before = _summary(watched.before)
    undo = _slowest(before, watched, settings)
    if broken := _broken(watched, settings):
        return Decision(Action.UNDO, broken, undo)
    if undo.low > settings.allowed:
        return Decision(Action.UNDO, _slower(undo, settings), undo)
    keep = slowdown(before, _summary(_latest(watched)), settings.keep_alpha)
    if watched.elapsed_s >= settings.least_s and _may_stay(watched, keep, settings):
        return Decision(Action.KEEP, _not_slower(keep, settings), keep)
    if watched.elapsed_s >= settings.deadline_s:
        action = Action.UNDO if settings.has_to_be_shown else Action.KEEP
        return Decision(action, _not_shown(watched, keep, settings), keep)
    return Decision(Action.WATCH, _reason("WATCHING", "Not settled yet", keep), keep)


def too_few_steps(before: Sequence[float], settings: WatchSettings = WatchSettings()) -> Reason | None:
    """Why a change could not be judged, by what was observed before it; None where it can."""
    if len(before) < settings.least_samples:
        return Reason(
            "TOO_FEW_STEPS",
            f"{len(before)} observations of step times in {settings.baseline_s:.0f} s, and "
            f"{settings.least_samples} are needed: nothing could tell whether a change makes it slower.",
            {"observations": len(before)},
        )
    return None


def _broken(watched: Watched, settings: WatchSettings) -> Reason | None:
    if watched.restarts:
        return Reason("RESTARTED", f"A container restarted {watched.restarts} times since the change.")
    if watched.silent_s > max(settings.window_s, settings.stalled_after * watched.usual_gap_s):
        return Reason("STEPS_STALLED", f"No step was reported for {watched.silent_s:.0f} s.")
    return None


def _may_stay(watched: Watched, keep: Slowdown, settings: WatchSettings) -> bool:
    if _gains_too_much(watched, keep, settings):
        return False
    most = settings.allowed + settings.tolerance
    return keep.high < most and _in_all(watched) < most + settings.pauses


def _gains_too_much(watched: Watched, keep: Slowdown, settings: WatchSettings) -> bool:
    """Steps that are faster though the workload has less are other steps (it evaluates, say), and tell nothing."""
    usual = math.inf if watched.grows else settings.tolerance
    return keep.estimate < -(usual if settings.most_gained is None else settings.most_gained)


def _slower(interval: Slowdown, settings: WatchSettings) -> Reason:
    if settings.of_samples:
        return _reason("SAMPLES_COST_MORE", f"GPU time for a sample is above {_bound(settings)}", interval)
    return _reason("STEPS_SLOWER", "Steps are slower", interval)


def _not_slower(interval: Slowdown, settings: WatchSettings) -> Reason:
    if settings.of_samples:
        return _reason("SAMPLES_WORTH_IT", f"GPU time for a sample is below {_bound(settings)}", interval)
    return _reason("STEPS_NOT_SLOWER", "Steps are not slower", interval)


def _not_shown(watched: Watched, interval: Slowdown, settings: WatchSettings) -> Reason:
    if interval.high < settings.allowed + settings.tolerance and _gains_too_much(watched, interval, settings):
        return _reason("GAINS_UNEXPLAINED", "More was gained than the change explains", interval)
    after = f"After {watched.elapsed_s:.0f} s"
    if settings.of_samples:
        text = f"{after} it is not shown that GPU time for a sample is below {_bound(settings)}"
        return _reason("SAMPLES_NOT_SHOWN_IN_TIME", text, interval)
    return _reason("NOT_SHOWN_IN_TIME", f"{after} it is not shown that steps are not slower", interval)


def _bound(settings: WatchSettings) -> str:
    return f"its bound of {settings.allowed + settings.tolerance:+.1%}"


def _slowest(before: Summary | None, watched: Watched, settings: WatchSettings) -> Slowdown:
    """Since the change, or since one of the later windows began, whichever is shown to be slower by more. Half of
    ``undo_alpha`` is for the first, the rest for the others together."""
    result = slowdown(before, _summary(watched.after), settings.undo_alpha / 2)
    windows = int(settings.deadline_s / settings.window_s)
    for window in range(1, min(windows, int(watched.elapsed_s / settings.window_s) + 1)):
        since_s = window * settings.window_s
        recent = [took for took, at_s in zip(watched.after, watched.at_s, strict=True) if at_s >= since_s]
        interval = slowdown(before, _summary(recent), settings.undo_alpha / 2 / (windows - 1))
        result = max(result, interval, key=lambda each: each.low)
    return result


def _summary(times: Sequence[float]) -> Summary | None:
    return summary(times) if times else None


def _latest(watched: Watched) -> list[float]:
    """Of the second half of the watch: what a change does may show only when memory or buffers have filled."""
    return [took for took, at_s in zip(watched.after, watched.at_s, strict=True) if at_s >= watched.elapsed_s / 2]


def _in_all(watched: Watched) -> float:
    """How much slower, outliers counted in full."""
    if not watched.after:
        return float("inf")
    return fmean(watched.after) / fmean(watched.before) - 1


def _reason(code: str, text: str, interval: Slowdown) -> Reason:
    numbers: dict[str, float | int | str] = {"estimate": interval.estimate, "low": interval.low}
    if interval.high != float("inf"):
        numbers["high"] = interval.high
        text += f": {interval.estimate:+.1%}, between {interval.low:+.1%} and {interval.high:+.1%}"
    return Reason(code, f"{text}.", numbers)
