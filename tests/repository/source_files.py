"""The repository's own files, without what tools write."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SKIPPED = {"build", "dist", "src"}
"""What tools write; ``src`` holds links to the folders that are looked at."""


def source_files(*suffixes: str) -> Iterator[Path]:
    for place in ROOT.iterdir():
        # Tools keep their state in hidden folders: the tests' own constants are in hypothesis' one.
        if place.name not in SKIPPED and (place.name == ".ci" or not place.name.startswith(".")):
            inside = (place,) if place.is_file() else place.rglob("*")
            yield from (path for path in inside if path.suffix in suffixes and path.is_file())
