"""AMD's GPUs through ``amd-smi``: compute partitions of each, and the memory mode that all of a node share.

A GPU is named by the PCI address of its first function, which stays while partitions come and go: in CPX the tool lists
each partition as a GPU of its own, with the functions .1 to .7. A memory mode needs the driver to be reloaded, which
``amd-smi`` does itself once it is told so.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kopt.agents.node_executor.hardware import HardwareError
from kopt.core.gpu import Vendor
from kopt.core.hardware.node_topology import NodeTopology
from kopt.core.node_plan.state import NodeState, PartitionedGpu
from kopt.core.node_plan.steps import ComputePartitionStep, MemoryPartitionStep, Step
from kopt.formats.topology import FormatError, parse

_MOST_CHARACTERS = 4 << 20
_READ_S, _SET_S = 60.0, 600.0
"""A memory mode reloads the driver, which takes minutes on a node of eight."""


class AmdHardware:
    """``path``: folders with ``amd-smi``, beside PATH. ``processes`` has a folder for each process with a GPU open."""

    def __init__(self, path: str = "", processes: Path = Path("/sys/class/kfd/kfd/proc")) -> None:
        self._path, self._processes = path, processes

    def read(self) -> NodeState:
        text = self._run(("static", "--bus", "--asic", "--partition", "--json"), _READ_S)
        try:
            topology = parse(text)
        except FormatError as error:
            raise HardwareError(f"what amd-smi prints cannot be read: {error}") from error
        if not isinstance(topology, NodeTopology):
            raise HardwareError("amd-smi prints something else than its GPUs")
        physical = []
        for gpu in topology.gpus:
            compute, _, memory = gpu.partition.partition("/")
            if not gpu.pci or not compute or not memory:
                raise HardwareError(f"amd-smi says nothing of the partitions of GPU {gpu.index}")
            if gpu.pci.endswith(".0"):
                physical.append(PartitionedGpu(gpu.pci, gpu.name, compute, memory))
        return NodeState(Vendor.AMD, tuple(physical))

    def users(self, step: Step) -> tuple[str, ...]:
        """Of the node: the driver is reloaded for all GPUs, and does not say which of them a process has open."""
        del step
        try:
            return tuple(f"process {path.name}" for path in sorted(self._processes.iterdir()))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise HardwareError(f"processes on the GPUs cannot be read: {error.strerror}") from error

    def apply(self, step: Step) -> None:
        if isinstance(step, ComputePartitionStep):
            self._run(("set", "--gpu", step.gpu, "--compute-partition", step.mode), _SET_S)
        elif isinstance(step, MemoryPartitionStep):
            # It asks whether the driver may be reloaded.
            self._run(("set", "--gpu", "all", "--memory-partition", step.mode), _SET_S, "Y\n")
        else:
            raise HardwareError(f"{step}: AMD's GPUs have no such verb")

    def _run(self, arguments: Sequence[str], limit_s: float, answer: str = "") -> str:
        search = os.pathsep.join(filter(None, (os.environ.get("PATH", os.defpath), self._path)))
        tool = shutil.which("amd-smi", path=search)
        if tool is None:
            raise HardwareError("amd-smi is not there")
        try:
            done = subprocess.run(
                [tool, *arguments],
                input=answer,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
                env={**os.environ, "PATH": search, "LC_ALL": "C"},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HardwareError(f"amd-smi {arguments[0]} did not end: {error}") from error
        if done.returncode or len(done.stdout) > _MOST_CHARACTERS:
            output = (done.stderr or done.stdout).strip()[-300:]
            raise HardwareError(f"amd-smi {' '.join(arguments)} ended with {done.returncode}: {output}")
        return done.stdout
