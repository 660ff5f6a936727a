"""Growing pauses between attempts, spread out so that a crowd does not come back at once."""

import random


class Backoff:
    """Doubles from ``first_s`` to ``most_s``; each pause is drawn from the upper half of its span."""

    def __init__(self, first_s: float, most_s: float, generator: random.Random | None = None) -> None:
        if not 0 < first_s <= most_s:
            raise ValueError(f"pauses from {first_s:g} to {most_s:g} s: the first must be positive, the last not less")
        self._first_s, self._most_s, self._span_s = first_s, most_s, first_s
        self._generator = generator or random.Random()

    def next_s(self) -> float:
        span_s, self._span_s = self._span_s, min(self._most_s, 2 * self._span_s)
        return span_s * self._generator.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._span_s = self._first_s
