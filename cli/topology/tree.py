"""Input of ``kopt topology parse`` that is no plain text: folders of ``/sys`` and YAML."""

import os
from pathlib import Path
from typing import Any

import yaml

from kopt.cli.errors import Refused
from kopt.formats.topology.linux.sysfs import IB_FILE, KFD_FILE, PCI_FILE

_MOST_FILES = 20_000
_LARGEST_FILE = 64 << 10
_LARGEST_YAML = 4 << 20
_DEEPEST = 8


def read(folder: Path) -> dict[str, str]:
    """The files of a folder that describe KFD, InfiniBand or PCI, by their paths below it. Raises Refused.

    Links to folders are followed one level down from ``folder``, as ``/sys/class`` and ``/sys/bus`` consist of them.
    """
    result: dict[str, str] = {}
    for path in _files(folder, 0, folder.name):
        if len(result) >= _MOST_FILES:
            raise Refused(f"{folder} holds more than {_MOST_FILES} files of hardware; name a folder further down")
        name, file = path
        try:
            with file.open("rb") as opened:
                data = opened.read(_LARGEST_FILE + 1)
        except OSError:
            # Some files of /sys answer with an error on some hardware; what is needed is missed by the parser.
            continue
        if len(data) > _LARGEST_FILE:
            raise Refused(f"{file} is too large for a file of /sys")
        result[name] = data.decode("utf-8", errors="replace")
    return result


def _files(folder: Path, depth: int, name: str) -> "list[tuple[str, Path]]":
    files: list[tuple[str, Path]] = []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda item: item.name):
            below = f"{name}/{entry.name}"
            if entry.is_dir(follow_symlinks=depth == 0) and depth < _DEEPEST:
                files += _files(Path(entry.path), depth + 1, below)
            elif entry.is_file() and any(pattern.match(below) for pattern in (KFD_FILE, IB_FILE, PCI_FILE)):
                files.append((below, Path(entry.path)))
    return files


class _Strict(yaml.SafeLoader):
    """YAML without aliases, which grow without bound, and without keys that stand twice."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise Refused("the YAML holds an alias (*); write it out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [str(key.value) for key, _ in node.value]
        if len(set(keys)) != len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise Refused(f"line {node.start_mark.line + 1}: duplicate key {twice!r}")
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """Raises Refused."""
    if len(text) > _LARGEST_YAML:
        raise Refused(f"more than {_LARGEST_YAML >> 20} MiB of YAML")
    try:
        return yaml.load(text, _Strict)
    except Refused:
        raise
    except ValueError as error:
        # A date that there is not, a number without digits: YAML reads what looks like one.
        raise Refused(f"not YAML ({error})") from error
    except yaml.YAMLError as error:
        position = getattr(error, "problem_mark", None)
        where = f"line {position.line + 1}, column {position.column + 1}: " if position else ""
        raise Refused(f"{where}not YAML ({getattr(error, 'problem', error)})") from error
    except RecursionError as error:
        raise Refused("YAML that is nested too deeply") from error
