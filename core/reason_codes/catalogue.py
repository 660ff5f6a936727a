"""The catalogue of reason codes. A code may mean different things in different areas: ``HOLD`` in lending and in
preemption. Reading resources of this package is its only I/O: they are part of the code, the same on every machine.
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType

NOTHING_TO_DO = "Nothing has to be done."


@dataclass(frozen=True)
class Meaning:
    """What a code means in an area, and what to do: empty where nothing has to be done."""

    area: str
    means: str
    do: str = ""


@functools.cache
def areas() -> Mapping[str, str]:
    """Titles by the name of an area, in the order of their names."""
    return MappingProxyType({area: str(table["title"]) for area, table in _tables().items()})


@functools.cache
def reason_codes() -> Mapping[str, tuple[Meaning, ...]]:
    """The meanings of every code, codes and areas in the order of their names."""
    meanings: dict[str, tuple[Meaning, ...]] = {}
    for area, table in _tables().items():
        for code, entry in table.items():
            if isinstance(entry, dict):
                meanings[code] = (*meanings.get(code, ()), Meaning(area, **entry))
    return MappingProxyType(dict(sorted(meanings.items())))


def page_of(code: str) -> str:
    """Where the documentation site explains a code."""
    return f"reasons.html#{code.lower()}"


def _tables() -> Mapping[str, dict[str, object]]:
    files = sorted(resources.files("kopt.core.reason_codes").iterdir(), key=lambda file: file.name)
    texts = {file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")}
    return {area: tomllib.loads(file.read_text(encoding="utf-8")) for area, file in texts.items()}
