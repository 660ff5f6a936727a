"""Small traces, and the real openb trace where it is."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kopt.core.gpu import Gpu
from kopt.core.scheduling.cluster import GpuRequest, Node
from kopt.core.scheduling.placement import PodRequest
from kopt.core.units import GIB, Bytes, MilliGpu
from kopt.data.jobs.openb import TracePod


@pytest.fixture(scope="session")
def openb_data_dir() -> Path:
    """The real openb trace; absent, the test is skipped, or fails where KOPT_REQUIRE_DATA=1."""
    root = os.environ.get("KOPT_DATA_DIR")
    folder = Path(root) / "jobs" / "openb" if root else None
    if folder is None or not (folder / "openb_node_list_gpu_node.csv").exists():
        message = "KOPT_DATA_DIR does not name a folder with jobs/openb/openb_node_list_gpu_node.csv"
        if os.environ.get("KOPT_REQUIRE_DATA") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return folder


@pytest.fixture
def nodes() -> tuple[Node, ...]:
    """Four nodes with 20 GPUs of two models."""
    sizes = (("a", 8, "a100", 96), ("b", 8, "a100", 96), ("c", 2, "t4", 64), ("d", 2, "t4", 64))
    return tuple(
        Node(name, tuple(Gpu(i, model, Bytes(0)) for i in range(count)), 1000 * cores, Bytes(512 * GIB))
        for name, count, model, cores in sizes
    )


@pytest.fixture
def pods() -> tuple[TracePod, ...]:
    """30 pods that ask for 17.3 GPUs."""
    return tuple(TracePod(f"pod-{number:02}", _request(number)) for number in range(30))


def _request(number: int) -> PodRequest:
    kinds: list[Callable[[], GpuRequest]] = [
        lambda: GpuRequest(1, MilliGpu(470)),
        lambda: GpuRequest(1),
        lambda: GpuRequest(1, MilliGpu(810), models=("t4",)),
        lambda: GpuRequest(),
        lambda: GpuRequest(2) if number == 4 else GpuRequest(1, MilliGpu(320)),
    ]
    return PodRequest(1000 * (1 + number % 7), Bytes(4 * GIB), kinds[number % 5]())
