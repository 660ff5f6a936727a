"""The ladder of a node's device plugin: which of its cluster's configurations comes after contention, or calm.

A node starts from the configuration that its operators chose, rung 0. Below it come, of those that the ConfigMap
offers, MPS for fewer clients, turns for no more pods than now, and a GPU for each. Nobody but the operators writes
configurations, so that what is not offered is no rung. Only time in which GPUs were used counts: an idle night is no
evidence that pods get on with each other.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kopt.core.reason import Reason
from kopt.core.sharing.modes import SharingMode
from kopt.core.sharing.pressure import Pressure
from kopt.core.units import format_span
from kopt.formats.sharing_terms import ReplicaSetting
from kopt.policies.fractions.ladder import LadderSettings, LadderState, observe, step

IN_USE_SMS, IN_USE_MEMORY = 0.02, 0.02
"""Below both a GPU is idle: a process that only has a context holds half a gigabyte."""
MPS_AWAY = Reason("SHARING_WITHOUT_MPS", "The daemon of MPS is away, and the plugin offers no GPU meanwhile.")
_LONGEST_GAP_S = 60.0
"""Between two samples that count as one span of use."""


@dataclass(frozen=True)
class Rung:
    """``name``: of the configuration, as the node's label names it."""

    name: str
    setting: ReplicaSetting


@dataclass(frozen=True)
class RungChange:
    """What is to be next, why, and the ladder as it is then."""

    rung: Rung
    reason: Reason
    state: LadderState


def configured_rungs(own: Rung, offered: Mapping[str, ReplicaSetting], *, keeps_latency: bool) -> tuple[Rung, ...]:
    """From the node's own configuration down. ``keeps_latency``: a pod has a latency to keep, which leaves turns out
    unless its operators chose them."""
    mode, replicas = own.setting.mode, own.setting.replicas
    below = [Rung(name, setting) for name, setting in offered.items()]
    result = [own]
    if mode is SharingMode.MPS:
        result += _fewer(below, SharingMode.MPS, replicas - 1)
    if mode is SharingMode.TIME_SLICING:
        result += _fewer(below, SharingMode.TIME_SLICING, replicas - 1)
    elif mode is SharingMode.MPS and not keeps_latency:
        result += _fewer(below, SharingMode.TIME_SLICING, replicas)
    if mode is not SharingMode.EXCLUSIVE:
        result += _fewer(below, SharingMode.EXCLUSIVE, 1)
    return tuple(result)


def _fewer(rungs: Sequence[Rung], mode: SharingMode, most: int) -> list[Rung]:
    """One for each number of replicas, the most first; of several that are alike the first by name."""
    fitting = sorted(
        (each for each in rungs if each.setting.mode is mode and each.setting.replicas <= most),
        key=lambda each: (-each.setting.replicas, each.name),
    )
    by_replicas = {each.setting.replicas: each for each in reversed(fitting)}
    return sorted(by_replicas.values(), key=lambda each: -each.setting.replicas)


def without_mps(rungs: Sequence[Rung], now: Rung) -> Rung | None:
    """Where to go while the daemon of MPS is away: turns for as many pods as now where they are offered, else whatever
    is next without MPS; None where every configuration needs it."""
    able = [each for each in rungs if each.setting.mode is not SharingMode.MPS]
    return min(able, key=lambda each: abs(each.setting.replicas - now.setting.replicas), default=None)


def used_time(history: Sequence[tuple[float, Pressure]], since_s: float = -math.inf) -> list[tuple[float, Pressure]]:
    """Samples after ``since_s`` in which a GPU was used, with idle time taken out: the last keeps its time, those
    before it move closer."""
    used = [(at_s, each) for at_s, each in history if at_s > since_s and _is_used(each)]
    result: list[tuple[float, Pressure]] = []
    for at, (at_s, pressure) in enumerate(reversed(used)):
        gap_s = 0.0 if not at else min(used[-at][0] - at_s, _LONGEST_GAP_S)
        result.append((at_s if not at else result[-1][0] - gap_s, pressure))
    return result[::-1]


def _is_used(pressure: Pressure) -> bool:
    busy = pressure.sm_active is not None and pressure.sm_active >= IN_USE_SMS
    return busy or pressure.slowdown is not None or (pressure.memory or 0.0) >= IN_USE_MEMORY


def next_rung(
    rungs: Sequence[Rung],
    state: LadderState,
    history: Sequence[tuple[float, Pressure]],
    now_s: float,
    settings: LadderSettings,
) -> RungChange | None:
    """After what was measured since the last change; None where the node stays. The change has the ladder's state from
    ``now_s`` on."""
    settled_s = -math.inf if state.moved_s is None else state.moved_s + settings.settle_s
    samples = used_time(history, settled_s)
    if not samples:
        return None
    lasting = replace(state, contended_since_s=None, calm_since_s=None)
    for at_s, pressure in samples[:-1]:
        lasting = observe(lasting, pressure, at_s, settings)
    at_s, pressure = samples[-1]
    # Times of the samples are used time: the last change counts by theirs as well.
    after = step(replace(lasting, moved_s=None), pressure, at_s, len(rungs) - 1, settings)
    if after.rung == state.rung:
        return None
    lasting = observe(lasting, pressure, at_s, settings)
    moved = replace(after, moved_s=now_s, raised_s=now_s if after.rung < state.rung else None)
    return RungChange(rungs[after.rung], _reason(lasting, at_s, pressure, after.rung > state.rung), moved)


def _reason(state: LadderState, at_s: float, pressure: Pressure, is_down: bool) -> Reason:
    since_s = state.contended_since_s if is_down else state.calm_since_s
    lasted_s = 0.0 if since_s is None else at_s - since_s
    code, word = ("SHARING_CONTENDED", "Contended") if is_down else ("SHARING_CALM", "Calm")
    values = (("slow-down", pressure.slowdown), ("SMs", pressure.sm_active), ("memory", pressure.memory))
    figures = ", ".join(f"{name} {value:.2f}" for name, value in values if value is not None)
    message = f"{word} for {format_span(lasted_s)} of use ({figures})."
    return Reason(code, message, {"lasted_s": lasted_s})
