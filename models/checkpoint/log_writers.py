"""Which processes write a log, told apart by the prefixes of their lines."""

from dataclasses import dataclass, field

_RANK_LINES = 3
"""Lines with the same number in front that make it a rank's."""
_MOST_WRITERS = 4096


@dataclass(slots=True)
class LogWriters:
    """Lines by writer. ``first`` names the only process so far; ``several``: more than one writes the log."""

    counts: dict[str, int] = field(default_factory=dict)
    first: str = ""
    several: bool = False

    def admit(self, name: str) -> str:
        """The writer's name, or "" for a new writer beyond the limit."""
        if name not in self.counts and len(self.counts) >= _MOST_WRITERS:
            return ""
        self.counts.setdefault(name, 0)
        return name

    def observe(self, name: str) -> str:
        """Counts a line; returns its writer, "" while the job has only one process.

        A job of one process names it on some lines and not on others, and not every number in front is a rank.
        """
        self.counts[name] = self.counts.get(name, 0) + 1
        if not self.several and self._is_process(name):
            self.first = self.first or name
            self.several = name != self.first
        return name if self.several else ""

    @property
    def processes(self) -> int:
        """How many processes write the log, as far as it shows."""
        return max(1, sum(self._is_process(name) for name in self.counts)) if self.several else 1

    def _is_process(self, name: str) -> bool:
        """A number in front of a line may be a step; the number of a rank comes again."""
        return bool(name) and (not name.isdecimal() or self.counts[name] >= _RANK_LINES)
