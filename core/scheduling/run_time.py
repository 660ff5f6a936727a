"""How long something will still run, as quantiles."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class RunTimeQuantiles:
    """``seconds[i]`` is exceeded with probability 1 − ``levels[i]``: of what runs the time that is left, of what has
    not begun its whole run time.

    Raises ValueError for levels that are not inside (0, 1) and rising, or seconds that are negative or falling.
    """

    levels: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.levels or len(self.levels) != len(self.seconds):
            raise ValueError(f"{len(self.levels)} levels and {len(self.seconds)} times are no quantiles")
        if not (self.levels[0] > 0 and self.levels[-1] < 1 and all(a < b for a, b in pairwise(self.levels))):
            raise ValueError(f"the levels {self.levels} do not rise between 0 and 1")
        if not (self.seconds[0] >= 0 and all(a <= b for a, b in pairwise(self.seconds))):
            raise ValueError(f"the times {self.seconds} are negative or fall")

    def at(self, level: float) -> float:
        """Seconds at a level between 0 and 1, linear between the quantiles; the outermost ones beyond them: what is
        not known of a tail is not made up."""
        index = bisect_right(self.levels, level)
        if index == 0:
            return self.seconds[0]
        if index == len(self.levels):
            return self.seconds[-1]
        low, high = self.levels[index - 1], self.levels[index]
        share = (level - low) / (high - low)
        return self.seconds[index - 1] + share * (self.seconds[index] - self.seconds[index - 1])
