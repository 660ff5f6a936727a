"""A challenger's gains over the champion, thing by thing: whether they are more than noise."""

from collections.abc import Sequence

import numpy as np

from kopt.core.reason import Reason
from kopt.training.pipeline.protocols import GateDecision, GateRules, refuse


def decide_by_gains(gains: Sequence[float], rules: GateRules, what: str, where: str) -> GateDecision:
    """``gains`` are logarithms of the champion's error by the challenger's, at least one; their mean is bounded by
    resampling them. ``what`` is the error's name, ``where`` says of how many things: ``on 7 machines``."""
    rng = np.random.default_rng(rules.seed)
    drawn = [float(np.mean(rng.choice(gains, len(gains)))) for _ in range(rules.resamples)]
    low, high = float(np.quantile(drawn, rules.level / 2)), float(np.quantile(drawn, 1 - rules.level / 2))
    gain = float(np.mean(gains))
    between = f"between {np.exp(-high):.2f} and {np.exp(-low):.2f}"
    comparison = f"{what} × {np.exp(-gain):.2f} ({between}) {where}"
    if high < 0:
        return refuse("WORSE", f"Worse than the champion: {comparison}.", log_gain=gain)
    if low <= 0:
        return refuse("NO_BETTER", f"Not better than the champion beyond noise: {comparison}.", log_gain=gain)
    return GateDecision(True, (Reason("BETTER", f"Better than the champion: {comparison}.", {"log_gain": gain}),))
