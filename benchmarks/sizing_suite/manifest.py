"""``manifest.toml`` → the entries of the suite, each with its command line and a digest of all that decides it."""

import hashlib
import json
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "scripts"
MANIFEST = HERE / "manifest.toml"
STEPS, LONG = 5, 40
"""Steps of an estimate and of a measurement, where an entry names none."""

Launcher = Literal["python", "module", "torchrun"]
_LAUNCHERS = ("python", "module", "torchrun")


class SuiteError(ValueError):
    """A manifest that cannot be used; the message names the entry."""


@dataclass(frozen=True)
class SuiteEntry:
    """One program with one set of arguments; the fields are those of ``manifest.toml``.

    ``files`` are the program and what it reads beside it, below ``scripts/``. ``digest`` changes with them and with
    everything that decides what runs.
    """

    name: str
    file: str
    files: tuple[str, ...]
    launcher: Launcher
    framework: str
    packages: tuple[str, ...]
    category: str
    family: str
    precision: str
    optimizer: str
    batch: int
    memory_gib: int
    digest: str
    arguments: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    steps: int = STEPS
    long: int = LONG

    @property
    def script(self) -> Path:
        return FOLDER / self.file

    @property
    def module(self) -> str:
        """The module's name, of a ``module`` entry: its package is the folder that holds the file."""
        return f"{self.script.parent.name}.{self.script.stem}"

    @property
    def folder(self) -> Path:
        """What has to be on the import path: the script's folder, or the one that holds its package."""
        return self.script.parent.parent if self.launcher == "module" else self.script.parent

    def arguments_for(self, steps: int) -> list[str]:
        return shlex.split(self.arguments.replace("{steps}", str(steps)))

    def environment_for(self, steps: int) -> dict[str, str]:
        return {name: value.replace("{steps}", str(steps)) for name, value in self.variables.items()}

    def command(self, python: str = "python", steps: int | None = None) -> list[str]:
        """The command line as a user would type it, in ``folder``."""
        tail = self.arguments_for(self.steps if steps is None else steps)
        if self.launcher == "module":
            return [python, "-m", self.module, *tail]
        if self.launcher == "torchrun":
            run = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
            return [*run, str(self.script), *tail]
        return [python, str(self.script), *tail]


def read_suite(path: Path = MANIFEST) -> tuple[SuiteEntry, ...]:
    """Every entry, in the manifest's order. Raises SuiteError where the manifest contradicts itself.

    The digests are those that the manifest holds; whether the files still have them is for ``digests_now`` to say.
    """
    try:
        document = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise SuiteError(f"{path.name}: {error}") from None
    if document.get("version") != 1:
        raise SuiteError(f"{path.name}: version is {document.get('version')!r}, not 1")
    entries = [
        _entry(script, run, document.get("digests", {}))
        for script in document.get("script", [])
        for run in script.get("runs", [])
    ]
    names = [one.name for one in entries]
    for name in names:
        if names.count(name) > 1:
            raise SuiteError(f"{path.name}: two entries are called {name}")
    return tuple(entries)


def digests_now(document: Mapping[str, Any], folder: Path = FOLDER) -> dict[str, str]:
    """SHA-256 of every file that a manifest names, as the files are now."""
    named = sorted({file for script in document["script"] for file in (script["file"], *script.get("also", ()))})
    return {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in named}


def _entry(script: Mapping[str, Any], run: Mapping[str, Any], digests: Mapping[str, str]) -> SuiteEntry:
    given = {**{key: value for key, value in script.items() if key not in ("runs", "also")}, **run}
    name = str(given.get("name", script.get("file", "?")))
    files = (script["file"], *script.get("also", ()))
    missing = [file for file in files if file not in digests]
    if missing:
        raise SuiteError(f"{name}: no digest of {missing[0]}; `python -m benchmarks.sizing_suite` prints them")
    launcher = given.pop("launcher", "python")
    if launcher not in _LAUNCHERS:
        raise SuiteError(f"{name}: launcher {launcher!r} is none of {', '.join(_LAUNCHERS)}")
    variables = given.pop("environment", {})
    given["packages"] = tuple(given.get("packages", ()))
    try:
        return SuiteEntry(
            files=files,
            launcher=cast(Launcher, launcher),
            variables=variables,
            digest=_digest(given, launcher, variables, [digests[file] for file in files]),
            **given,
        )
    except TypeError as error:
        raise SuiteError(f"{name}: {str(error).partition(') ')[2] or error}") from None


def _digest(given: Mapping[str, Any], launcher: str, variables: Mapping[str, str], files: Sequence[str]) -> str:
    """Of what decides the memory: files, arguments, variables and launcher; not of the words about them."""
    decisive = [launcher, given.get("arguments", ""), dict(sorted(variables.items())), list(files)]
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:16]
