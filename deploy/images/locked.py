"""Prints the part of requirements.lock that an image needs: the closure of extras and of single packages.

    python deploy/images/locked.py controllers            # what kopt[controllers] needs
    python deploy/images/locked.py --package setuptools   # what builds the wheel

The lock file names behind each package what asked for it; walking that back from the roots keeps versions and hashes
exactly as they were resolved and tested together, without a second resolution and without an index. Packages that
another extra asks a shared one for (a superset, never less) may come along. Standard library only: it runs in a bare
image before anything is installed.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "kaiwo-optimizer"
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[([^\]]*)\])?")
_PARENT = re.compile(r"^    #\s+(?:via\s+)?([a-z0-9][a-z0-9.-]*)")


class LockError(ValueError):
    """The lock file lacks what was asked for; the message names it."""


class Entry(NamedTuple):
    """One package of the lock file: its lines as they stand, and who asked for it."""

    name: str
    text: str
    parents: frozenset[str]


def entries(lock: str) -> Iterator[Entry]:
    """The packages of a lock file; one with markers may occur several times."""
    for block in re.split(r"\n(?=[a-z0-9])", "\n" + lock)[1:]:
        lines = block.splitlines()
        parents = {match[1] for line in lines[1:] if (match := _PARENT.match(line)) and match[1] != "via"}
        yield Entry(_normal(lines[0].split("==")[0]), block.rstrip("\n"), frozenset(map(_normal, parents)))


def roots(pyproject: str, extras: Iterable[str]) -> set[str]:
    """The direct requirements of the project with the extras. Raises LockError for an extra that does not exist."""
    project = tomllib.loads(pyproject)["project"]
    found = {_name(one) for one in project["dependencies"]}
    waiting = list(extras)
    while waiting:
        extra = waiting.pop()
        if extra not in project["optional-dependencies"]:
            raise LockError(
                f"pyproject.toml has no extra {extra!r}; it has {', '.join(project['optional-dependencies'])}"
            )
        for one in project["optional-dependencies"][extra]:
            if _name(one) == PROJECT:
                waiting += [part.strip() for part in (_parts(one)[2] or "").split(",")]
            else:
                found.add(_name(one))
    return found


def closure(lock: str, wanted: Iterable[str]) -> str:
    """The lock file reduced to the packages and what they need. Raises LockError for one that it does not have."""
    known = list(entries(lock))
    needed: set[str] = set()
    waiting = set(wanted)
    if missing := sorted(waiting - {entry.name for entry in known}):
        raise LockError(f"requirements.lock has no {', '.join(missing)}; write it again with `make lock`")
    while waiting:
        needed |= waiting
        waiting = {entry.name for entry in known if entry.parents & waiting} - needed
    return "\n".join(entry.text for entry in known if entry.name in needed) + "\n"


def _parts(requirement: str) -> re.Match[str]:
    match = _REQUIREMENT.match(requirement)
    if match is None:
        raise LockError(f"{requirement!r} is no requirement")
    return match


def _name(requirement: str) -> str:
    return _normal(_parts(requirement)[1])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints the part of requirements.lock that an image needs.")
    parser.add_argument("extras", nargs="*", metavar="EXTRA")
    parser.add_argument("--package", action="append", default=[], help="a package beside the extras, e.g. setuptools")
    given = parser.parse_args()
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packages = {_normal(one) for one in given.package}
    try:
        sys.stdout.write(closure(lock, packages | (roots(pyproject, given.extras) if given.extras else set())))
    except LockError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
