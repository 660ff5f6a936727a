"""Fleets and requests for placement."""

from collections.abc import Callable

import pytest

from kopt.core.scheduling.cluster import GpuRequest
from kopt.core.scheduling.placement import FleetNode, PodRequest
from kopt.core.units import GIB, Bytes, MilliGpu


@pytest.fixture
def pod() -> Callable[..., PodRequest]:
    """``pod(cores, gpus, milli, models)``; four GiB of memory."""

    def make(
        cores: float = 1, gpus: int = 1, milli: int = 1000, models: tuple[str, ...] = (), **more: object
    ) -> PodRequest:
        asked = GpuRequest(gpus, MilliGpu(milli), models=models) if gpus else GpuRequest()
        return PodRequest(int(1000 * cores), Bytes(4 * GIB), asked, **more)  # type: ignore[arg-type]

    return make


@pytest.fixture
def node() -> Callable[..., FleetNode]:
    """``node(name, gpus, cores, model)``; a TiB of memory."""

    def make(name: str, gpus: int = 8, cores: int = 96, model: str = "a100", **more: object) -> FleetNode:
        return FleetNode(name, 1000 * cores, Bytes(1024 * GIB), gpus, model, **more)  # type: ignore[arg-type]

    return make
