"""Steps down when pods on one GPU disturb each other, and up again when they no longer do.

The rungs: what was planned; then, with MPS, parts of those that can wait halved until they are at their floors; then
turns; then a GPU for each. Turns are left out where a pod has a latency to keep, as it would wait for all others, or
would have less than its floor. One step at a time, after contention has lasted, and not by measurements of before the
last step; up after a calm that doubles each time a step up did not hold, so that moves die out. What is not measured
moves nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kopt.core.reason import Reason
from kopt.core.sharing.modes import SharingMode
from kopt.core.sharing.pressure import Pressure
from kopt.policies.fractions.sharing import (
    ClientShare,
    Sharer,
    SharingHardware,
    SharingPlan,
    SharingSettings,
    exclusive,
)


@dataclass(frozen=True)
class LadderSettings:
    """Contended above the first of each pair, calm below the second; between the two nothing changes. SMs count where
    no slowdown is measured: a busy GPU is no harm by itself. Times are seconds."""

    slowdown: tuple[float, float] = (1.0, 0.7)
    sm_active: tuple[float, float] = (0.97, 0.8)
    memory: tuple[float, float] = (0.97, 0.9)
    contended_s: float = 60.0
    settle_s: float = 300.0
    """So long after a step measurements are still of what was before it: rates over five minutes."""
    calm_s: float = 900.0
    most_calm_s: float = 86_400.0


@dataclass(frozen=True)
class LadderState:
    """``rung``: 0 is the plan. The times are since when contention or calm has lasted, None for neither. ``wait_s``:
    how long a calm has to last before a step up; ``raised_s``: when the last step up was, ``moved_s``: the last at
    all."""

    rung: int = 0
    contended_since_s: float | None = None
    calm_since_s: float | None = None
    wait_s: float = 0.0
    raised_s: float | None = None
    moved_s: float | None = None


def rungs(
    plan: SharingPlan, hardware: SharingHardware, sharers: Sequence[Sharer], settings: SharingSettings
) -> tuple[SharingPlan, ...]:
    """From the plan down, for the pods of one GPU; the last one is a GPU for each."""
    result = [plan]
    while plan.mode is SharingMode.MPS and (lower := _shrunk(result[-1], sharers)) is not None:
        result.append(lower)
    if plan.mode is SharingMode.MPS and _hold_in_turns(plan, hardware, sharers):
        turns = tuple(replace(share, percent=100 // plan.replicas) for share in plan.shares)
        reason = Reason(
            "SHARING_CONTENDED", "Parts are at their floors, so pods would take turns: bandwidth is not shared."
        )
        result.append(SharingPlan(SharingMode.TIME_SLICING, plan.replicas, turns, (reason,)))
    if plan.mode is not SharingMode.EXCLUSIVE:
        reason = Reason("SHARING_CONTENDED", "Nothing else has helped: each would have a GPU of its own.")
        result.append(exclusive(hardware, sharers, reason))
    return tuple(result)


def _shrunk(plan: SharingPlan, sharers: Sequence[Sharer]) -> SharingPlan | None:
    """With the parts of pods that can wait halved; None where all are at their floors."""
    shares = tuple(_halved(share, sharer) for share, sharer in zip(plan.shares, sharers, strict=True))
    if shares == plan.shares:
        return None
    names = ", ".join(share.name for share, before in zip(shares, plan.shares, strict=True) if share != before)
    return SharingPlan(
        plan.mode, plan.replicas, shares, (Reason("SHARING_CONTENDED", f"The parts of {names} would be halved."),)
    )


def _halved(share: ClientShare, sharer: Sharer) -> ClientShare:
    if sharer.duties.latency_critical:
        return share
    return replace(share, percent=min(share.percent, max(sharer.floor_percent, math.ceil(share.percent / 2))))


def _hold_in_turns(plan: SharingPlan, hardware: SharingHardware, sharers: Sequence[Sharer]) -> bool:
    """Whether none has a latency to keep, and each has its floor with one turn in ``replicas``."""
    part = 100 // plan.replicas
    fits = sum(share.mib for share in plan.shares[: plan.replicas]) <= hardware.gpu_mib
    return fits and not any(sharer.duties.latency_critical or sharer.floor_percent > part for sharer in sharers)


def observe(state: LadderState, pressure: Pressure, now_s: float, settings: LadderSettings) -> LadderState:
    """With one more measurement; the rung stays."""
    contended, calm = _evaluated(pressure, settings)
    return replace(
        state,
        contended_since_s=(now_s if state.contended_since_s is None else state.contended_since_s)
        if contended
        else None,
        calm_since_s=(now_s if state.calm_since_s is None else state.calm_since_s) if calm else None,
    )


def step(state: LadderState, pressure: Pressure, now_s: float, last: int, settings: LadderSettings) -> LadderState:
    """After one more measurement, at most one rung away. ``last``: the lowest rung."""
    state = replace(state, rung=min(state.rung, last))
    if state.moved_s is not None and now_s - state.moved_s < settings.settle_s:
        return state
    state = observe(state, pressure, now_s, settings)
    wait_s = max(state.wait_s, settings.calm_s)
    if state.contended_since_s is not None and now_s - state.contended_since_s >= settings.contended_s:
        if state.rung == last:
            return state
        failed = state.raised_s is not None and now_s - state.raised_s < wait_s
        held = state.raised_s is not None and not failed
        wait_s = min(settings.most_calm_s, 2 * wait_s) if failed else settings.calm_s if held else wait_s
        return LadderState(state.rung + 1, wait_s=wait_s, moved_s=now_s)
    if state.rung and state.calm_since_s is not None and now_s - state.calm_since_s >= wait_s:
        # The step up before has held.
        wait_s = settings.calm_s if state.raised_s is not None else wait_s
        return LadderState(state.rung - 1, wait_s=wait_s, raised_s=now_s, moved_s=now_s)
    return state


def _evaluated(pressure: Pressure, settings: LadderSettings) -> tuple[bool, bool]:
    """Contended, calm; neither in between, and where nothing is measured."""
    speed = pressure.sm_active if pressure.slowdown is None else pressure.slowdown
    bounds = settings.sm_active if pressure.slowdown is None else settings.slowdown
    signals = [(speed, bounds), (pressure.memory, settings.memory)]
    measured = [(value, pair) for value, pair in signals if value is not None and math.isfinite(value)]
    if any(value > high for value, (high, _) in measured):
        return True, False
    return False, speed is not None and bool(measured) and all(value < low for value, (_, low) in measured)
