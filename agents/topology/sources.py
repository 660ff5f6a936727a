"""What is asked on a node, in one visible list, and recorded outputs in its place."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kopt.agents.topology.commands import Limits, Tool
from kopt.agents.topology.readings import Collector, CollectorError, CollectorProblem

TOOLS: dict[str, tuple[str, ...]] = {
    "nvidia-smi-topo": ("nvidia-smi", "topo", "-m"),
    "nvidia-smi-p2p": ("nvidia-smi", "topo", "-p2p", "r"),
    "nvidia-smi-nvlink": ("nvidia-smi", "nvlink", "-s"),
    "nvidia-smi-list": ("nvidia-smi", "-L"),
    "nvidia-smi-q": ("nvidia-smi", "-q"),
    "nvidia-smi-version": ("nvidia-smi", "--version"),
    "amd-smi-list": ("amd-smi", "list", "--json"),
    "amd-smi-topology": ("amd-smi", "topology", "--json"),
    "amd-smi-version": ("amd-smi", "version", "--json"),
    "rocm-smi-topology": ("rocm-smi", "--showtopo"),
    "ibv-devinfo": ("ibv_devinfo",),
    "ibdev2netdev": ("ibdev2netdev",),
    "rdma-link": ("rdma", "link", "show"),
    "lspci": ("lspci", "-D", "-nn"),
}
"""By the name of their collector: what a support case records with ``TOOL > DIR/NAME.txt``."""
SYSFS = {"kfd": "kfd", "infiniband": "infiniband", "pci": "pci", "driver-versions": "versions"}
"""Collectors that read a part of /sys."""
NVML, FABRIC = "nvml", "fabric"
NAMES = (*TOOLS, *SYSFS, NVML, FABRIC)

_OF_RDMA = ("ibv-devinfo", "ibdev2netdev", "rdma-link")
"""They fail where there is no RDMA."""
_EXIT_ABSENT = 3
_CORRUPT_INFOROM = 14
"""``nvidia-smi`` warns with this status and prints everything all the same."""


@dataclass(frozen=True)
class Sources:
    """Where collectors look. ``root`` holds ``sys`` (and ``opt/rocm``) of the node; ``only`` limits them by name.

    ``fabric`` describes the network between nodes: the output of ibnetdiscover, or a model of topograph.
    """

    root: Path = Path("/")
    replay: Path | None = None
    fabric: Path | None = None
    only: Sequence[str] = ()
    limits: Limits = Limits()

    def collectors(self) -> list[Collector]:
        """Those of one node, in the order of the list. Raises ValueError for a name that is not known."""
        if unknown := set(self.only) - set(NAMES):
            raise ValueError(f"no collector is named {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
        if self.replay is not None:
            return [Recorded(name, self.replay / f"{name}.*", self.limits) for name in self._wanted()]
        return [self._live(name) for name in self._wanted()]

    def _wanted(self) -> list[str]:
        return [name for name in NAMES if not self.only or name in self.only]

    def _live(self, name: str) -> Collector:
        if name == FABRIC:
            return Recorded(name, self.fabric or Path("/nowhere"), self.limits)
        if name in TOOLS:
            needs = self.root / "sys/class/infiniband" if name in _OF_RDMA else None
            return Tool(name, TOOLS[name], self.limits, fine=(0, _CORRUPT_INFOROM), needs=needs)
        program = "nvml" if name == NVML else "sysfs"
        arguments = [] if name == NVML else [SYSFS[name], str(self.root)]
        command = [sys.executable, "-P", "-m", f"kopt.agents.topology.{program}", *arguments]
        return Tool(name, command, self.limits, absent=(_EXIT_ABSENT,))


class Recorded:
    """What a tool printed once: the file that matches ``DIR/NAME.*``, read anew in every scan."""

    def __init__(self, name: str, pattern: Path, limits: Limits) -> None:
        self.name = name
        self._pattern, self._most_bytes = pattern, limits.text_bytes

    async def collect(self) -> str:
        return await asyncio.to_thread(self._read)

    def _read(self) -> str:
        paths = sorted(path for path in self._pattern.parent.glob(self._pattern.name) if path.is_file())
        if not paths:
            raise CollectorError(CollectorProblem.ABSENT, f"no {self._pattern.name} in {self._pattern.parent}")
        if len(paths) > 1:
            raise CollectorError(CollectorProblem.FAILED, f"{paths[0].name} and {paths[1].name}: which of them?")
        try:
            with paths[0].open("rb") as file:
                text = file.read(self._most_bytes + 1)
        except OSError as error:
            raise CollectorError(CollectorProblem.FAILED, f"{paths[0].name}: {error.strerror}") from error
        if len(text) > self._most_bytes:
            raise CollectorError(
                CollectorProblem.TOO_LARGE, f"{paths[0].name} has more than {self._most_bytes >> 10} KiB"
            )
        return text.decode(errors="replace")
