"""Versions of drivers and tools whose output this was tested with; others are read all the same, with a warning."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """First and last version that are known, by their leading numbers: (470,) to (610,) holds 595.71.05."""

    first: tuple[int, ...]
    last: tuple[int, ...]

    def holds(self, version: str) -> bool:
        numbers = tuple(int(part) if part.isdigit() else -1 for part in version.replace("-", ".").split("."))
        return self.first <= numbers[: len(self.first)] and numbers[: len(self.last)] <= self.last

    def __str__(self) -> str:
        return " to ".join(".".join(map(str, item)) for item in (self.first, self.last))


TESTED: Mapping[str, Range] = {
    "nvidia": Range((450,), (610,)),
    "nvidia-smi": Range((450,), (610,)),
    "amdgpu": Range((5, 13), (6, 16)),
    "rocm": Range((5, 0), (7, 2)),
    "amd-smi": Range((23,), (26,)),
    "mlx5_core": Range((4, 9), (25, 10)),
}


def version_warnings(versions: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each version that is not known."""
    for name, version in versions.items():
        tested = TESTED.get(name)
        if tested is None:
            yield f"{name} {version}: nothing is known about this tool's versions"
        elif not tested.holds(version):
            yield f"{name} {version} is not among the known versions ({tested}); its output may be read wrongly"
