"""A small bandwidth predictor and what to ask it."""

from typing import Any

from kopt.core.hardware.bandwidth import Collective
from kopt.models.bandwidth.predictor import BandwidthPredictor, BandwidthQuestion
from kopt.models.bandwidth.residual import KernelSettings
from kopt.models.bandwidth.rows import MeasuredRow, QueryRow
from kopt.topology.collective_cost import analytic
from kopt.topology.hardware import HardwareRow, machine_of

PREDICTOR = BandwidthPredictor
_SLOWER = {"A100-SXM4-80GB": 1.2, "H100-SXM5-80GB": 1.1, "MI300X": 1.5}
_LINKS = {"A100-SXM4-80GB": "NVSwitch-NV12", "H100-SXM5-80GB": "NVSwitch-NV18", "MI300X": "XGMI-fullmesh-8"}


def make() -> BandwidthPredictor:
    return BandwidthPredictor(KernelSettings(inducing=24))


def table() -> Any:
    """Made-up machines, each slower than the physics by a factor of its own."""
    return [row for gpu in _SLOWER for k in (2, 8) for size in (2**12, 2**20, 2**28) for row in _rows(gpu, k, size)]


def _rows(gpu: str, k: int, size_bytes: int) -> list[MeasuredRow]:
    query = QueryRow(_hardware(gpu, k), tuple(range(k)), Collective.ALL_REDUCE, size_bytes)
    took_us = _SLOWER[gpu] * analytic(query.gpus(), query.collective, size_bytes).latency_us
    return [MeasuredRow(query, took_us, gpu, gpu)]


def _hardware(gpu: str, k: int, nodes: int = 1) -> HardwareRow:
    return HardwareRow(gpu, "", _LINKS[gpu], nodes, k, "8x NDR400 IB" if nodes > 1 else "")


def requests() -> list[BandwidthQuestion]:
    """On one node, on several, and of all sizes."""
    one, several = machine_of(_hardware("H100-SXM5-80GB", 8)), machine_of(_hardware("MI300X", 8, nodes=2))
    return [
        BandwidthQuestion(one, (0, 1, 2, 3), Collective.ALL_REDUCE, 2**30),
        BandwidthQuestion(one, (0, 7), Collective.ALL_TO_ALL, 1),
        BandwidthQuestion(several, tuple(range(8)), Collective.ALL_GATHER, 2**34, nodes=2),
        BandwidthQuestion(several, (3,), Collective.SENDRECV, 4096, nodes=64),
    ]


def refused() -> list[BandwidthQuestion]:
    """A GPU that is not there, one alone, and sizes that are none."""
    one = machine_of(_hardware("H100-SXM5-80GB", 8))
    return [
        BandwidthQuestion(one, (0, 8), Collective.ALL_REDUCE, 2**20),
        BandwidthQuestion(one, (0,), Collective.ALL_REDUCE, 2**20),
        BandwidthQuestion(one, (0, 1), Collective.ALL_REDUCE, 0),
        BandwidthQuestion(one, (0, 1), Collective.ALL_REDUCE, 2**60),
        BandwidthQuestion(one, (0, 1), Collective.ALL_REDUCE, 2**20, nodes=2),
    ]
