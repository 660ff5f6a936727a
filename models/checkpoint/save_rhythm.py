"""What the saves of a job look like in volumes that it alone writes, and when: for logs that say nothing of them.

A save is all that changes from one rest to the next. Two saves that wrote the same files are a pattern; from then on a
save has ended when all of its files are there again, as large as before, and have rested. It is safe to stop the job
after such an end, and only until the next save is due by the shortest time that ever lay between two of them.
"""

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

_KEPT, _LATELY = 8, 4
_REST_S, _FIRST_REST_S = 10.0, 30.0
"""How long nothing may change for a save to have ended; longer until two were alike."""
_QUIET_S = 7.5
"""Between two changes: there was a look that showed none."""
_ABANDONED_S = 300.0
"""After so long a save that misses files is over: it was another kind of save, or its writer is gone."""
_SMALLER, _LARGER, _SAME = 0.9, 1.1, 0.001
_LOOKED_AT_S = 45.0
"""The log agent says every 30 s that nothing has changed."""
_EARLY_S, EARLY = 15.0, 0.15
"""How long before its time a save counts as due: a look comes every 5 s, and an answer takes some more."""
_VARIES = 0.25
_DUE = "A save is due by the times of those before it; it may have begun."


class Part(NamedTuple):
    """A checkpoint of a save: its name and what stands for the names of its files, both without numbers."""

    name: str
    contents: str
    size_bytes: int
    temporary: bool = False
    """A name in it says that it is still being written."""

    @property
    def kind(self) -> tuple[str, str]:
        return self.name, self.contents


@dataclass(frozen=True, slots=True)
class Save:
    """Unix seconds; ``pause_s``: the longest time without a change between its beginning and its end.

    ``again``: a file that had been written was written once more; another save may have begun before this one's rest.
    """

    began_s: float
    ended_s: float
    pause_s: float
    again: bool
    parts: tuple[Part, ...]
    names: tuple[str, ...]

    def like(self, other: "Save") -> bool:
        """Whether both wrote the same files, of about the same sizes."""
        same_files = self.again == other.again and _kinds(self.parts) == _kinds(other.parts)
        return same_files and all(
            _SMALLER * before.size_bytes <= after.size_bytes <= _LARGER * before.size_bytes
            for before, after in zip(other.parts, self.parts, strict=True)
        )


@dataclass(slots=True)
class OpenSave:
    """A save of which nobody knows yet that it has ended: the checkpoints that have changed since ``began_s``."""

    began_s: float
    changed_at_s: float
    pause_s: float = 0.0
    again: bool = False
    names: dict[str, float] = field(default_factory=dict)
    """When each changed last."""

    def unsafe_because(self, now_s: float) -> str:
        """Why the job is not safe meanwhile."""
        return f"The files of the job changed last {now_s - self.changed_at_s:.0f} s ago: a save may go on."

    def change(self, names: Iterable[str], grown: Container[str], at_s: float) -> None:
        """``names`` changed; those in ``grown`` are larger than they were, as in a write that goes on."""
        self.again = self.again or any(
            name not in grown and at_s - self.names.get(name, at_s) > _QUIET_S for name in names
        )
        self.pause_s = max(self.pause_s, at_s - self.changed_at_s)
        self.changed_at_s = at_s
        self.names |= dict.fromkeys(names, at_s)


class SaveRhythm:
    """The saves that one looker saw from their beginning to their end, the oldest first."""

    def __init__(self) -> None:
        self.saves: deque[Save] = deque(maxlen=_KEPT)
        self.open: OpenSave | None = None
        self.looked_at_s: float | None = None
        self._sizes: dict[str, int] = {}

    def observe(self, parts: Mapping[str, Part], changed: Mapping[str, float], at_s: float) -> None:
        """A look at ``at_s``: all checkpoints by name, and when those that changed since the last look were written.

        What the first look shows was there before.
        """
        before_s, self.looked_at_s = self.looked_at_s, at_s
        sizes, self._sizes = self._sizes, {name: part.size_bytes for name, part in parts.items()}
        vanished = sizes.keys() - parts.keys()
        if before_s is None:
            return
        if changed or vanished:
            if self.open is None:
                began_s = min(changed.values(), default=at_s)
                self.open = OpenSave(min(max(began_s, before_s), at_s), at_s)
            grown = {name for name in changed if sizes.get(name, -1) < parts[name].size_bytes}
            self.open.change(changed, grown, at_s)
        self._end_if_over(parts, at_s)

    def confirm(self, parts: Mapping[str, Part], at_s: float) -> None:
        """A look at ``at_s`` showed what the one before did."""
        if self.looked_at_s is not None and at_s > self.looked_at_s:
            self.observe(parts, {}, at_s)

    def _end_if_over(self, parts: Mapping[str, Part], at_s: float) -> None:
        """Ends the open save where all of it has rested until ``at_s``."""
        save = self.open
        if save is None or at_s - save.changed_at_s < self._rest_s:
            return
        names = tuple(sorted(name for name in save.names if name in parts))
        written = tuple(sorted(parts[name] for name in names))
        whole = self._whole(written) and not any(part.temporary for part in written) and self._expected(save)
        if written and not whole and at_s - save.changed_at_s < _ABANDONED_S:
            return
        self.open = None
        if written:
            if self.saves:
                # Only the last save's files have to be there yet.
                self.saves[-1] = replace(self.saves[-1], names=())
            self.saves.append(Save(save.began_s, save.changed_at_s, save.pause_s, save.again, written, names))

    def _expected(self, save: OpenSave) -> bool:
        """Whether writing a file twice is what this job's saves do."""
        return not (save.again and self.saves) or any(earlier.again for earlier in self.saves)

    @property
    def _rest_s(self) -> float:
        longest_s = max((save.pause_s for save in self.saves), default=0.0)
        return max(_REST_S if self.repeated else _FIRST_REST_S, 2 * longest_s)

    def _whole(self, parts: Sequence[Part]) -> bool:
        """Whether all that any save so far has written is among the parts, and none is smaller than they let expect."""
        sizes, earlier = _sizes(parts), [_sizes(save.parts) for save in self.saves]
        for kind in {kind for save in earlier for kind in save}:
            before = [save[kind] for save in earlier if kind in save]
            if len(sizes.get(kind, ())) < max(map(len, before)):
                return False
            if min(sizes[kind]) < _smallest([min(each) for each in before]):
                return False
        return True

    @property
    def repeated(self) -> bool:
        """Whether the last save wrote all that any did, as one before it."""
        if len(self.saves) < 2:
            return False
        *earlier, last = self.saves
        return self._whole(last.parts) and any(last.like(save) for save in earlier)

    @property
    def saved_names(self) -> tuple[str, ...]:
        """The checkpoints of the last save, once saves were alike."""
        return self.saves[-1].names if self.repeated else ()

    def unsafe_because(self, now_s: float) -> str:
        """Why these files alone do not show at ``now_s`` that no save is under way, as a sentence; "" if they do."""
        if self.looked_at_s is None or now_s - self.looked_at_s > _LOOKED_AT_S:
            return "Nobody has looked at the files of the job lately."
        if self.open is not None:
            return self.open.unsafe_because(now_s)
        if len(self.saves) < 3 or not self.repeated:
            return "The files alone cannot tell yet: three saves that wrote the same files have to be observed."
        if not set(self.saves[-1].names) <= self._sizes.keys():
            return "Files of the last save are gone."
        due_s = self.due_s
        if due_s is None:
            return "The saves come at no regular time, so that the next one may begin at any moment."
        if now_s >= due_s:
            return _DUE
        return ""

    def doubt_beside_log(self, now_s: float, *, announced: bool) -> str:
        """Why the job is not safe whatever its log says: a line of a save comes up to a second after its beginning.

        ``announced``: the log tells of saves before they begin. Then one that is long overdue counts no longer, as the
        job may save at other times now. Otherwise the log adds nothing to what files alone show.
        """
        if not announced and (self.saves or self.open is not None):
            return self.unsafe_because(now_s)
        if not self.repeated:
            return ""
        if self.open is not None:
            return self.open.unsafe_because(now_s)
        due_s, longest_s = self.due_s, max(self._gaps, default=0.0)
        if due_s is not None and due_s <= now_s <= self.saves[-1].began_s + 2 * longest_s:
            return _DUE
        return ""

    @property
    def _gaps(self) -> list[float]:
        """Seconds from one save to the next."""
        return [after.began_s - before.began_s for before, after in pairwise(self.saves)]

    @property
    def due_s(self) -> float | None:
        """From when on the next save may begin (Unix seconds); None where the times between saves vary too much."""
        gaps = self._gaps
        if len(gaps) < 2:
            return None
        shortest, spread = min(gaps), max(gaps[-_LATELY:]) - min(gaps[-_LATELY:])
        if spread > max(_VARIES * shortest, _REST_S):
            return None
        return self.saves[-1].began_s + shortest - max(_EARLY_S, EARLY * shortest, 2 * spread)

    def to_dict(self) -> dict[str, Any]:
        return {
            "looked_at_s": self.looked_at_s,
            "sizes": self._sizes,
            "open": asdict(self.open) if self.open else None,
            "saves": [asdict(save) for save in self.saves],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "SaveRhythm":
        """Raises KeyError, TypeError or ValueError for what ``to_dict`` did not write."""
        rhythm = cls()
        looked_at_s = document["looked_at_s"]
        rhythm.looked_at_s = None if looked_at_s is None else float(looked_at_s)
        rhythm._sizes = {str(name): int(size) for name, size in document["sizes"].items()}
        rhythm.open = OpenSave(**document["open"]) if document["open"] else None
        rhythm.saves.extend(_save_from(item) for item in document["saves"])
        return rhythm


def _save_from(item: Mapping[str, Any]) -> Save:
    parts = tuple(Part(*part) for part in item["parts"])
    return Save(**{**item, "parts": parts, "names": tuple(item["names"])})


def _kinds(parts: Sequence[Part]) -> list[tuple[str, str]]:
    return [part.kind for part in parts]


def _sizes(parts: Sequence[Part]) -> dict[tuple[str, str], list[int]]:
    """Ranks write files whose names differ in numbers alone: of each kind, all sizes."""
    result: dict[tuple[str, str], list[int]] = {}
    for part in parts:
        result.setdefault(part.kind, []).append(part.size_bytes)
    return result


def _smallest(sizes: Sequence[int]) -> float:
    """How small a whole part may be: files of one size hardly vary, others by as much as they did."""
    smallest, spread = min(sizes), max(sizes) - min(sizes)
    return max(_SMALLER * smallest, (1 - _SAME) * smallest - 2 * spread)
