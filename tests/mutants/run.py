"""Runs mutmut over the modules of modules.toml and holds the result against ``LEAST_KILLED``: ``make mutants``.

mutmut has one configuration per folder and wants real files, while this repository's packages are links to the folders
at its root (docs/adr/0001-layout-links-and-layers.md). So each group gets a folder in build/mutants with links to the
sources and tests and a configuration of its own; mutmut copies what the links lead to and mutates the copies. Nothing
in the working tree changes.

    python -P tests/mutants/run.py [--again] [GROUP...]

``--again`` keeps what was killed before and tests only the other mutants once more.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mutmut.mutation.diff_apply import get_diff_for_mutant

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "mutants"
LEAST_KILLED = 0.9
LINKED = ("src", "tests", "benchmarks", "deploy", "docs")
WORDING = (r"^\s*raise \w+\(", r"_LOG\.\w+\(", r"^\s*f?\"[^\"]* ", r"^\s*(\w+ )?text \+?= ", r"^\s*# ")
"""Lines that are not mutated: what they say to people may be said otherwise. Whether they are reached is tested."""
LITERAL = re.compile(r'"[^"]*"')
NOTICED = {1: "killed", 3: "killed", 24: "timeout", 36: "timeout", 152: "timeout", 255: "timeout"}
NOTICED |= {-signal: "timeout" for signal in (9, 11, 24)}
FAST = "not ray and not browser and not services and not cluster and not slow"
PYTEST = ("-m", FAST, "--hypothesis-profile=mutants", "-p", "no:unraisableexception", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Mutant:
    """One change of one function, and the exit code of the tests with it; None where they were not run."""

    name: str
    module: str
    exit_code: int | None

    @property
    def noticed(self) -> bool:
        return self.exit_code in NOTICED


@dataclass(frozen=True)
class Group:
    """Modules that are mutated together."""

    name: str
    modules: Sequence[str]
    tests: Sequence[str]

    @property
    def folder(self) -> Path:
        return BUILD / self.name

    @cached_property
    def sources(self) -> list[str]:
        return [f"src/kopt/{module}" for module in self.modules]

    def prepare(self, afresh: bool) -> None:
        """The folder that mutmut runs in."""
        if afresh:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in LINKED:
            link = self.folder / name
            if not link.is_symlink():
                link.symlink_to(ROOT / name)
        settings = {
            "source_paths": self.sources,
            "also_copy": list(LINKED),
            "pytest_add_cli_args": list(PYTEST),
            "pytest_add_cli_args_test_selection": [f"tests/{test}" for test in self.tests],
            "do_not_mutate_patterns": list(WORDING),
            "track_dependencies": False,
            "use_git_change_detection": False,
            "timeout_constant": 10.0,
            "timeout_multiplier": 5.0,
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        own = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        text = "\n".join([own, "[tool.mutmut]", *lines, ""])
        (self.folder / "pyproject.toml").write_text(text, encoding="utf-8")

    def run(self, jobs: int, mutants: Sequence[str] = ()) -> None:
        command = [str(Path(sys.executable).with_name("mutmut")), "run", "--max-children", str(jobs), *mutants]
        with (self.folder / "log").open("w") as log:
            done = subprocess.run(
                command, cwd=self.folder, env=os.environ | {"CI": "1"}, stdout=log, stderr=subprocess.STDOUT
            )
        if done.returncode:
            raise SystemExit(f"mutmut failed for {self.name}:\n{(self.folder / 'log').read_text()[-4000:]}")

    def mutants(self) -> list[Mutant]:
        result = []
        for module, source in zip(self.modules, self.sources, strict=True):
            meta = self.folder / "mutants" / f"{source}.meta"
            codes = json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"] if meta.exists() else {}
            result += [Mutant(name, module, code) for name, code in codes.items()]
        return result

    def diff(self, mutant: Mutant) -> str:
        """The lines that the mutant changes, with - and +."""
        with contextlib.chdir(self.folder):
            shown = get_diff_for_mutant(mutant.name, path=f"src/kopt/{mutant.module}")
        lines = [line for line in shown.splitlines() if line[:1] in "-+" and line[:3] not in ("---", "+++")]
        return "\n".join(f"{line[0]} {line[1:].strip()}" for line in lines)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def explained(group: str) -> Mapping[str, str]:
    """Why a change cannot be noticed, by the lines that it changes."""
    document: dict[str, list[dict[str, Any]]] = tomllib.loads((HERE / "equivalent.toml").read_text(encoding="utf-8"))
    return {
        "\n".join(line.strip() for line in change.strip().splitlines()): entry["reason"]
        for entry in document.get(group, [])
        for change in entry["changes"]
    }


def is_wording(change: str) -> bool:
    """Whether only sentences differ: what is said to people may be said otherwise."""
    lines = [LITERAL.sub(lambda text: '""' if " " in text[0] else text[0], line) for line in change.splitlines()]
    before, after = ([line[2:] for line in lines if line[0] == sign] for sign in "-+")
    return before == after


def report(group: Group) -> list[str]:
    """Prints what survived and returns the modules in which too much did."""
    weak, reasons, mutants = [], explained(group.name), group.mutants()
    for module in group.modules:
        mine = [mutant for mutant in mutants if mutant.module == module]
        unnoticed = {mutant: group.diff(mutant) for mutant in mine if not mutant.noticed}
        counted = {mutant: change for mutant, change in unnoticed.items() if not is_wording(change)}
        survived = {mutant: change for mutant, change in counted.items() if change not in reasons}
        killed, equivalent = len(mine) - len(unnoticed), len(counted) - len(survived)
        share = (killed + equivalent) / max(1, killed + len(counted))
        for mutant, change in survived.items():
            state = {0: "survived", 5: "no test", 33: "no test", None: "not run"}.get(mutant.exit_code, "odd")
            say(f"  {state}: {mutant.name}\n    " + change.replace("\n", "\n    "))
        say(f"{module}: {killed} killed, {equivalent} equivalent, {len(survived)} survived: {share:.0%}")
        weak += [module] if share < LEAST_KILLED else []
    return weak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    parser.add_argument("--again", action="store_true", help="test only those that were not killed")
    parser.add_argument("--show", action="store_true", help="print the last run's result again")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    table = tomllib.loads((HERE / "modules.toml").read_text(encoding="utf-8"))
    if unknown := set(options.groups) - set(table):
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(table)}")
    weak = []
    for name in options.groups or table:
        group = Group(name, **table[name])
        again = [mutant.name for mutant in group.mutants() if not mutant.noticed] if options.again else []
        if not options.show and (again or not options.again):
            group.prepare(afresh=not options.again)
            group.run(options.jobs, again)
        weak += report(group)
    if weak:
        raise SystemExit(f"fewer than {LEAST_KILLED:.0%} of the mutants were noticed in {', '.join(weak)}")


if __name__ == "__main__":
    main()
