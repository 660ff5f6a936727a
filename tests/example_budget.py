"""How many examples a property test draws: few in every run, very many in ``make test-thorough``."""

import os

THOROUGH = os.environ.get("KOPT_THOROUGH") == "1"


def examples(usual: int, *, thorough: int | None = None) -> int:
    """``max_examples`` of a test that draws ``usual`` examples, or fifty times as many in a thorough run."""
    return (thorough or 50 * usual) if THOROUGH else usual
