"""Checkpoint folders in a pod's volumes, as the kubelet lays these out: trainers that save without a word show it here.

Nobody says where a job keeps its checkpoints, so a folder counts as one of theirs by what lies in it. Volumes that
cannot hold any (Secrets, ConfigMaps, …) are left out; host paths and a container's own file system are not below the
kubelet's folder, and nothing is known of them.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from kopt.agents.logtail.checkpoints import Allowance, Item, Parts, below, entries_of, item_of, newest, readable
from kopt.agents.logtail.pods import EphemeralVolumes

ROOT = Path("/var/lib/kubelet/pods")
MOST_LOOKED_AT = 20_000
"""Entries of one pod, in one search and in one look."""
_MOST_OF_FOLDER = 5000
"""A folder of a data set must not use up what is for all."""
_FIRST_SEARCH_S, _SEARCH_S = 5.0, 60.0
"""From one search to the next: short after a pod's start, and then twice as long each time."""
_ABSENT_AFTER = 4
_DEEPEST = 6
_MOST_FOLDERS = 64
_LEVELS_INSIDE = 2
_RESTING_S = 300.0
"""A checkpoint in which nothing changed for so long is walked through by searches alone."""
_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,99}")
_OTHER_PLUGINS = re.compile(r"~(configmap|secret|projected|downward-api|git-repo)$")
_PASSED_OVER = re.compile(r"site-packages|node_modules|__pycache__|\.git|lost\+found|blobs|wandb")
"""Folders of programs and caches, often huge."""

_TEMPORARY = r"(?:tmp|temp|part|partial|incomplete|writing)"
_PREFIX = rf"^[._]*(?:{_TEMPORARY}[-_.]*)?(?:(?:global|model|net|weights|state|train|last)[-_]?)?"
_NUMBERED = re.compile(
    rf"{_PREFIX}(?:(?:check-?point|ckpt|snapshot)[-_])?(?:check-?point|ckpt|step|iter(?:ation)?|epoch|snapshot)"
    r"(?:[-_=. ]?\d|[-_.](?:last|latest|best|final)\b)"
    r"|^(?:last|latest|best|final)[-_.](?:check-?point|ckpt|model)\b",
    re.I,
)
_ENDING = re.compile(
    r"(?:\.(?:pt|pth|ckpt|safetensors|distcp|h5|hdf5|keras|msgpack|t7|index|meta|metadata)"
    r"|\.data-\d+-of-\d+|(?:model|optim|weight|state|adapter)[^/]*\.bin"
    r"|(?:check-?point|ckpt)[^/]*\.(?:pkl|pickle|npz|npy|tar|zip|gz|zst|bin))"
    rf"(?:\.json|\.md5|\.sha256|~|[-._]{_TEMPORARY}\b.*|\.[0-9A-Za-z_]{{6,8}})?$",
    re.I,
)
_BARE = re.compile(rf"^(?:check-?point|ckpt)[-_]?\d+(?:[-._]{_TEMPORARY}\b.*)?$", re.I)
_COLLECTION, _NUMBER = re.compile(r"check-?point|ckpt", re.I), re.compile(r"^\d+(?:\D*(?:tmp|temp)\b.*)?$", re.I)


def is_checkpoint(name: str, *, is_folder: bool, folder: str = "") -> bool:
    """Whether an entry of this name in a folder of that one is a checkpoint, or a part of one."""
    if not is_folder:
        return bool(_ENDING.search(name) or _BARE.search(name))
    numbered = _NUMBER.search(name) and _COLLECTION.search(folder)
    return bool(numbered or _NUMBERED.search(name) or _ENDING.search(name))


@dataclass(frozen=True, slots=True)
class _Folder:
    """``volume/parts``; ``name`` says where it is, beginning with the volume's name."""

    volume: Path
    parts: Parts
    name: str
    ephemeral: bool
    changed_at_s: float = float("inf")

    def holds(self, name: str, *, is_folder: bool) -> bool:
        """Whether an entry of this name is a checkpoint in it."""
        return is_checkpoint(name, is_folder=is_folder, folder=self.parts[-1] if self.parts else self.name)


class PodVolumes:
    """One pod's. Its calls may block for as long as a file system does, and are for one thread at a time."""

    def __init__(
        self,
        root: Path,
        uid: str,
        clock: Callable[[], float] = time.monotonic,
        ephemeral: EphemeralVolumes | None = None,
    ) -> None:
        self._pod = root / uid if _UID.fullmatch(uid) else None
        self._ephemeral = ephemeral or EphemeralVolumes()
        self._clock, self._search_at_s, self._gap_s = clock, float("-inf"), _FIRST_SEARCH_S
        self._folders: list[_Folder] = []
        self._resting: dict[tuple[str, str], list[Item]] = {}
        self._searches, self._present = 0, False

    @property
    def absent(self) -> bool:
        """Several searches have met no folder of the pod: the kubelet keeps them elsewhere."""
        return self._searches > _ABSENT_AFTER and not self._present

    def observe(self, now_s: float, exclusive: Collection[str] = ()) -> list[Item]:
        """What lies in the checkpoint folders at ``now_s`` (Unix seconds), as the endpoint takes it; the newest where
        there is too much. When it is time, the folders are searched first. ``exclusive``: volumes of this job alone."""
        if self._clock() >= self._search_at_s:
            self._search()
            self._search_at_s = self._clock() + self._gap_s
            self._gap_s = min(2 * self._gap_s, _SEARCH_S)
        allowance = Allowance(MOST_LOOKED_AT, _MOST_OF_FOLDER)
        items = newest(unit for folder in self._folders for unit in self._units(folder, allowance, now_s))
        return [item | {"exclusive": True} if _volume(item) in exclusive else item for item in items]

    def _search(self) -> None:
        """Upper folders come first, then those that changed last, in case there are too many entries."""
        self._searches += 1
        self._present = self._present or self._pod is None or self._pod.is_dir()
        allowance = Allowance(MOST_LOOKED_AT, _MOST_OF_FOLDER)
        level, discovered = list(self._volumes()), list[_Folder]()
        for _ in range(_DEEPEST + 1):
            inner: list[_Folder] = []
            for folder in sorted(level, key=lambda item: -item.changed_at_s):
                holds, others = _search(folder, allowance)
                discovered += [folder] if holds else []
                inner += others
            level = inner
        self._folders = sorted(discovered, key=lambda folder: -folder.changed_at_s)[:_MOST_FOLDERS]
        self._resting.clear()

    def _volumes(self) -> Iterator[_Folder]:
        """The volumes, and of those that the pod sees in parts alone (subPath) these: the rest is of other pods."""
        if self._pod is None:
            return
        volumes, subpaths = self._pod / "volumes", self._pod / "volume-subpaths"
        for plugin in entries_of(volumes, (), Allowance()):
            if _OTHER_PLUGINS.search(plugin.name):
                continue
            for volume in entries_of(volumes, (plugin.name,), Allowance()):
                path = volumes / plugin.name / volume.name
                whole = path / "mount" if plugin.name.endswith("~csi") else path
                parts = [
                    f"{volume.name}/{container.name}/{mount.name}"
                    for container in entries_of(subpaths, (volume.name,), Allowance())
                    for mount in entries_of(subpaths, (volume.name, container.name), Allowance())
                ]
                ephemeral = plugin.name.endswith("~empty-dir") or self._ephemeral.may_have(volume.name)
                for name in parts:
                    yield _Folder(subpaths / name, (), readable(name), ephemeral)
                if not parts:
                    yield _Folder(whole, (), readable(volume.name), ephemeral)

    def _units(self, folder: _Folder, allowance: Allowance, now_s: float) -> Iterator[list[Item]]:
        """The items of each checkpoint in a folder, but for one that cannot be looked at whole any more."""
        for entry, is_folder in _followed(folder, allowance):
            if folder.holds(entry.name, is_folder=is_folder) and (item := item_of(entry)) is not None:
                item |= {"folder": folder.name, "ephemeral": folder.ephemeral}
                inside = self._inside(folder, entry.name, item, allowance, now_s) if is_folder else []
                if allowance.entries > 0:
                    yield [item, *inside]

    def _inside(self, folder: _Folder, name: str, item: Item, allowance: Allowance, now_s: float) -> list[Item]:
        resting = self._resting.get((folder.name, name))
        if resting is not None and resting[0] == item:
            return resting[1:]
        parts, origin = (*folder.parts, name), {"folder": folder.name, "ephemeral": folder.ephemeral}
        items = [inner | origin for inner in below(folder.volume, parts, _LEVELS_INSIDE, allowance, f"{item['path']}/")]
        if allowance.entries > 0 and max(each["modified_at"] for each in (item, *items)) < now_s - _RESTING_S:
            self._resting[folder.name, name] = [item, *items]
        return items


def _volume(item: Item) -> str:
    """The volume that an item lies in, as the kubelet calls it."""
    return str(item["folder"]).partition("/")[0]


def _search(folder: _Folder, allowance: Allowance) -> tuple[bool, list[_Folder]]:
    """Whether a checkpoint lies in the folder, and which others are in it."""
    holds, others = False, list[_Folder]()
    for entry, is_folder in _followed(folder, allowance):
        if folder.holds(entry.name, is_folder=is_folder):
            holds = True
        elif is_folder and not _PASSED_OVER.fullmatch(entry.name) and (item := item_of(entry)) is not None:
            name, parts = f"{folder.name}/{item['path']}", (*folder.parts, entry.name)
            others.append(_Folder(folder.volume, parts, name, folder.ephemeral, item["modified_at"]))
    return holds, others


def _followed(folder: _Folder, allowance: Allowance) -> Iterator[tuple["os.DirEntry[str]", bool]]:
    """The entries of a folder, and whether each is one itself; no links."""
    for entry in entries_of(folder.volume, folder.parts, allowance):
        with contextlib.suppress(OSError):
            if not entry.is_symlink():
                yield entry, entry.is_dir(follow_symlinks=False)
