"""What a dry run changes about an estimate of the code.

Both are opinions about one peak, in logarithms. The code's has the width of its interval. A dry run has seen a part of
the truth: the rest of the run can only need more, by a factor whose spread shrinks as the run becomes steady. The
centre never falls below the larger of the two point estimates; only the upper end may come down.
"""

import math
from dataclasses import replace

from kopt.core.prediction import Prediction
from kopt.core.reason import Reason
from kopt.core.units import format_bytes
from kopt.core.workload.sizing import WorkloadProfile
from kopt.models.sizing.calibration import PROBABILITY

_STEADY_SPREAD = 0.02
"""Of the later peak over the one seen, in logarithms, when training steps repeat: allocations of later steps are the
same but for evaluation and the last batch."""
_UNSTEADY_SPREAD = 0.45
"""When nothing repeats. Five minutes of an inference pod show .64 of its later peak in the median (ln 1/.64)."""
_STEPS = 20.0
"""Steps after which a steady run is believed by half of the way."""
_UPPER = 2.05
"""Standard deviations up to the .98 quantile."""


def spread_of(profile: WorkloadProfile) -> float:
    """Standard deviation of ln(later peak / peak seen)."""
    if not profile.steady:
        return _UNSTEADY_SPREAD
    steps = float(profile.steps if profile.steps is not None else profile.samples)
    return _STEADY_SPREAD + (_UNSTEADY_SPREAD - _STEADY_SPREAD) * math.exp(-steps * math.log(2) / _STEPS)


def combine(
    centre: float, low: float, high: float, profile: WorkloadProfile | None
) -> tuple[float, float, float, tuple[Reason, ...]]:
    """Centre, low and high in bytes once a dry run was seen, and what it changed. Without one, as they were."""
    if profile is None or profile.peak_bytes <= 0:
        return centre, low, high, ()
    measured = float(profile.peak_bytes)
    floor = max(centre, measured)
    theirs = measured * math.exp(_UPPER * spread_of(profile))
    code, dry = math.log(high / centre) + 1e-6, _UPPER * spread_of(profile)
    # The narrower opinion counts more; neither may push the end below what both take for likely.
    trust = code**2 / (code**2 + dry**2)
    upper = math.exp((1 - trust) * math.log(high) + trust * math.log(max(theirs, floor)))
    upper = max(floor, min(upper, high) if high >= floor else max(upper, theirs))
    text = (
        f"A dry run of {profile.duration_s:.0f} s on {profile.gpu} used {format_bytes(int(measured))}"
        f"{' and was steady' if profile.steady else ', but was not steady yet'}; the upper end went from "
        f"{format_bytes(int(high))} to {format_bytes(int(upper))}."
    )
    numbers: dict[str, float | int | str] = {
        "observed_peak_bytes": int(measured),
        "samples": profile.samples,
        "high_bytes_before": int(high),
    }
    return floor, min(max(low, measured), floor), upper, (Reason("DRY_RUN", text, numbers),)


def alone(profile: WorkloadProfile, refused: Prediction) -> Prediction:
    """The prediction of a dry run without any code estimate; the reason of ``refused`` is kept."""
    measured = float(profile.peak_bytes)
    if measured <= 0:
        return refused
    spread = spread_of(profile)
    centre, high = measured * math.exp(spread / 2), measured * math.exp(_UPPER * spread)
    text = (
        f"A dry run of {profile.duration_s:.0f} s on {profile.gpu} used {format_bytes(int(measured))}; the code itself "
        "could not be read, so what it needs later rests on how steady that run was."
    )
    reason = Reason("DRY_RUN_ONLY", text, {"observed_peak_bytes": int(measured), "samples": profile.samples})
    return replace(
        refused,
        value=float(round(centre)),
        low=measured,
        high=float(round(high) + 1),
        probability=PROBABILITY,
        confidence=0.8 if profile.steady else 0.4,
        reasons=(reason, *refused.reasons),
        quantiles={0.5: float(round(centre)), 0.98: float(round(high) + 1)},
    )
