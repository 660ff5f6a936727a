"""Time of the day that is replayed: as fast as is wanted while nothing is to be done, and as in the world while an
engine works. So a second of an engine counts as a second, however fast the day passes. With a ``scale`` a second of an
engine counts as that many.
"""


class TraceClock:
    """``speed``: seconds of the day in a second of idle time; ``quiet_s``: so long after the last event the engine
    counts as idle, in seconds of the world."""

    def __init__(self, wall_s: float, speed: float, quiet_s: float, scale: float = 1.0) -> None:
        self._wall_s, self._speed, self._quiet_s, self._scale = wall_s, speed, quiet_s, scale
        self._busy_until_s = wall_s
        self.now_s = 0.0

    def touch(self, wall_s: float) -> None:
        """Something happened by ``wall_s`` of the world that an engine may have to act on; all since counts as busy."""
        self._busy_until_s = max(self._busy_until_s, wall_s + self._quiet_s)

    def settle(self) -> None:
        """The engine has nothing to do: nobody waits."""
        self._busy_until_s = self._wall_s

    def advance(self, wall_s: float, due_s: float) -> float:
        """The time of the day now, at ``wall_s`` of the world, not past ``due_s`` while idle: something is to be done
        then."""
        passed_s = max(0.0, wall_s - self._wall_s)
        busy_s = min(passed_s, max(0.0, self._busy_until_s - self._wall_s))
        self.now_s += busy_s * self._scale
        self.now_s += max(0.0, min((passed_s - busy_s) * self._speed, due_s - self.now_s))
        self._wall_s = max(wall_s, self._wall_s)
        return self.now_s
