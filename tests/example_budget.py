"""How many examples a property test draws: fewer in continuous integration, very many in ``make test-thorough``."""

import os

THOROUGH = os.environ.get("KOPT_THOROUGH") == "1"
CONTINUOUS_INTEGRATION = bool(os.environ.get("CI"))


def examples(usual: int, *, thorough: int | None = None) -> int:
    """``max_examples`` of a test that draws ``usual`` examples, or fifty times as many in a thorough run.

    Continuous integration, which draws the same examples every time, draws a third as many.
    """
    if THOROUGH:
        return thorough or 50 * usual
    return max(usual // 3, min(usual, 10)) if CONTINUOUS_INTEGRATION else usual
