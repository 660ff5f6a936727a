"""What a checkpoint folder shows: many trainers save without logging it, and the files are reliable evidence.

A checkpoint is all that has one name. It is durable once nothing of it has changed for a while, no temporary name is
left in it, and it is not smaller than those before it of the same kind: half-written ones look finished, too.
"""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any

from kopt.models.checkpoint.line_facts import step_of_checkpoint
from kopt.models.checkpoint.save_rhythm import Part, SaveRhythm

SETTLED_S, FIRST_SETTLED_S = 10.0, 30.0
"""How long a checkpoint must rest to be durable; the first of its kind, which nothing can be compared with, longer."""
RECENT_S = 120.0
"""For how long a listing says what lies in a folder."""
_TEMPORARY = re.compile(r"tmp|temp\b|partial|incomplete|\.part\b|unfinished|staging|writing|in[-_]?progress|~$", re.I)
_KIND = re.compile(
    r"ckpt|checkpoint|epoch|iter|step|model|weights|state|last|best|latest|snapshot|net|adapter|\d", re.I
)
_OTHER = re.compile(
    r"\.(log|out|err|txt|csv|ya?ml|md|html|png|tfevents\S*)$|^(runs|wandb|logs|tensorboard|mlruns)$", re.I
)
_PART = re.compile(r"(\.(index|meta|json|data-\d+-of-\d+|md5|sha256))+$", re.I)
_DIGITS = re.compile(r"\d+")
_SMALLER = 0.9
_MOST_UNITS = 64


@dataclass(frozen=True, slots=True)
class FileFact:
    """One entry of a checkpoint folder; ``path`` is relative to it.

    ``folder`` names the folder where nobody said that it is one; what is ``ephemeral`` is gone with its pod; into
    the volume of what is ``exclusive`` no other job writes.
    """

    path: str
    size_bytes: int
    modified_at_s: float
    is_folder: bool = False
    folder: str = ""
    ephemeral: bool = False
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Unit:
    """All files of one checkpoint; ``changed_at_s``: when it was last seen to be another than before.

    ``contents`` stands for the names of its files, numbers left out. ``folder`` names the folder where nobody said that
    it is one: what others write, or the job reads, may lie there.
    """

    name: str
    files: int
    size_bytes: int
    first_s: float
    last_s: float
    temporary: bool
    changed_at_s: float
    folder: str = ""
    ephemeral: bool = False
    exclusive: bool = False
    contents: str = ""

    @property
    def step(self) -> int | None:
        return step_of_checkpoint(self.name)

    @property
    def alone(self) -> bool:
        """Whether it is the job's own, whatever its name, and outlives the pod."""
        return self.exclusive and not self.ephemeral

    @property
    def kind(self) -> str:
        return _DIGITS.sub("0", self.name)

    def differs(self, other: "Unit") -> bool:
        return self._appearance != other._appearance

    @property
    def _appearance(self) -> tuple[object, ...]:
        return self.files, self.size_bytes, self.last_s, self.contents, self.temporary


@dataclass(frozen=True, slots=True)
class FolderView:
    """``writing`` names what is being written, "" if nothing is; ``durable`` is the newest checkpoint that is whole."""

    writing: str = ""
    durable: Unit | None = None

    @property
    def step(self) -> int | None:
        return self.durable.step if self.durable else None


class FolderWatch:
    """Listings of one folder, in order of arrival; ``view`` evaluates them."""

    def __init__(self) -> None:
        self.units: dict[str, Unit] = {}
        self.listed_at_s: float | None = None
        self.rhythm = SaveRhythm()

    def observe(self, listing: Iterable[FileFact], at_s: float) -> None:
        """A listing of the folder at ``at_s`` (Unix seconds); one that is older than the last is ignored."""
        if self.listed_at_s is not None and at_s < self.listed_at_s:
            return
        units_by_name = _units(listing, at_s)
        changed: dict[str, float] = {}
        for name, unit in units_by_name.items():
            before = self.units.get(name)
            if before is not None and not unit.differs(before):
                units_by_name[name] = replace(unit, changed_at_s=before.changed_at_s)
            elif unit.alone:
                changed[name] = unit.first_s if before is None else unit.last_s
        newest = sorted(units_by_name.values(), key=lambda item: -item.last_s)[:_MOST_UNITS]
        self.units = {item.name: item for item in newest}
        self.listed_at_s = at_s
        self.rhythm.observe(self._parts(), {name: changed[name] for name in changed if name in self.units}, at_s)

    def confirm(self, at_s: float) -> None:
        """The folder was looked at again and was as it was listed last."""
        if self.listed_at_s is not None:
            self.listed_at_s = max(self.listed_at_s, at_s)
            self.rhythm.confirm(self._parts(), at_s)

    def _parts(self) -> dict[str, Part]:
        """The checkpoints that no other job can have written; they do not go with the pod."""
        return {
            unit.name: Part(unit.kind, unit.contents, unit.size_bytes, unit.temporary)
            for unit in self.units.values()
            if unit.alone
        }

    def doubt_alone(self, now_s: float) -> str:
        """Why these files alone do not show that the job may be stopped, as a sentence; "" if they do."""
        # What is written into other volumes may be of this job, too.
        writing = self.view(now_s, {unit.folder for unit in self.units.values()}).writing
        return (
            f"The volumes of the job show that {writing} is being written."
            if writing
            else self.rhythm.unsafe_because(now_s)
        )

    def recent(self, now_s: float) -> bool:
        """Whether somebody still looks at the folder."""
        return self.listed_at_s is not None and now_s - self.listed_at_s <= RECENT_S

    def view(self, now_s: float, own: Container[str] = ()) -> FolderView:
        """What is being written, and what is durable, at ``now_s`` of the same clock.

        Of folders that nobody named only those in ``own`` count, and only for what was looked at: whoever looks there
        says so again and again. What is gone with its pod shows a write and is never durable.
        """
        durable: Unit | None = None
        writing = ""
        whole: dict[str, Unit] = {}
        torn: dict[str, str] = {}
        for unit in sorted(self.units.values(), key=lambda item: item.last_s):
            if unit.folder and unit.folder not in own:
                continue
            before = whole.get(unit.kind)
            until_s = min(now_s, self.listed_at_s or now_s) if unit.folder else now_s
            rests_s = until_s - max(unit.last_s, unit.changed_at_s if before is None else unit.last_s)
            if unit.temporary or rests_s < (FIRST_SETTLED_S if before is None else SETTLED_S):
                # Left behind by a run that was killed, if it has rested for long.
                writing = unit.name if rests_s < 10 * FIRST_SETTLED_S else writing
                continue
            if before is not None and (unit.files < before.files or unit.size_bytes < _SMALLER * before.size_bytes):
                # A slow write pauses between its parts for longer than a whole checkpoint has to rest.
                if rests_s < 10 * FIRST_SETTLED_S:
                    torn[unit.kind] = unit.name
                continue
            torn.pop(unit.kind, None)
            whole[unit.kind] = unit
            durable = durable if unit.ephemeral else unit
        return FolderView(writing or next(iter(torn.values()), ""), durable)

    def to_dict(self) -> dict[str, Any]:
        units = [asdict(unit) for unit in self.units.values()]
        return {"listed_at_s": self.listed_at_s, "units": units, "rhythm": self.rhythm.to_dict()}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "FolderWatch":
        """Raises KeyError, TypeError or ValueError for what ``to_dict`` did not write."""
        watch = cls()
        watch.listed_at_s = None if document["listed_at_s"] is None else float(document["listed_at_s"])
        watch.units = {item["name"]: Unit(**item) for item in document["units"]}
        if "rhythm" in document:
            # Older releases stored none.
            watch.rhythm = SaveRhythm.from_dict(document["rhythm"])
        return watch


def _units(listing: Iterable[FileFact], at_s: float) -> dict[str, Unit]:
    """The checkpoints of a listing, by name."""
    units: dict[str, Unit] = {}
    paths: dict[str, list[str]] = {}
    for fact in listing:
        if name := _unit_of(fact):
            units[name] = _joined(units.get(name), name, fact, at_s)
            paths.setdefault(name, []).append(_DIGITS.sub("0", fact.path))
    return {name: replace(unit, contents=_digest(paths[name])) for name, unit in units.items()}


def _digest(paths: list[str]) -> str:
    return sha256("\0".join(sorted(paths)).encode(errors="replace")).hexdigest()[:16]


def _unit_of(fact: FileFact) -> str:
    """The checkpoint that an entry belongs to: the first folder, or the file without what marks its parts."""
    top, _, rest = fact.path.replace("\\", "/").strip("/").partition("/")
    if _OTHER.search(top) or not _KIND.search(top) or (fact.is_folder and not rest):
        return ""
    name = top if rest else _PART.sub("", top)
    return f"{fact.folder}/{name}" if fact.folder else name


def _joined(unit: Unit | None, name: str, fact: FileFact, at_s: float) -> Unit:
    temporary = _TEMPORARY.search(fact.path) is not None
    if unit is None:
        at, size = fact.modified_at_s, fact.size_bytes
        return Unit(name, 1, size, at, at, temporary, at_s, fact.folder, fact.ephemeral, fact.exclusive)
    return replace(
        unit,
        files=unit.files + 1,
        size_bytes=unit.size_bytes + fact.size_bytes,
        temporary=unit.temporary or temporary,
        first_s=min(unit.first_s, fact.modified_at_s),
        last_s=max(unit.last_s, fact.modified_at_s),
    )
