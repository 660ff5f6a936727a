"""What the residual knows of a machine: figures of its hardware and software, never a name."""

import math

import numpy as np
from numpy.typing import NDArray

from kopt.core.hardware.bandwidth import Collective, Transport
from kopt.topology.set_links import GpuSet, Way

Vector = NDArray[np.float64]

KNOTS = np.array([10.0, 13.0, 16.0, 19.0, 22.0, 25.0, 28.0, 31.0])
"""log2 of the message bytes at which the residual is modelled; straight between them, flat outside."""

_COLLECTIVES = {
    Collective.ALL_REDUCE: (1.0, 0.0, 0.0, 0.0),
    Collective.ALL_GATHER: (0.0, 1.0, 0.0, 0.0),
    Collective.REDUCE_SCATTER: (0.2, 0.9, 0.0, 0.0),
    Collective.BROADCAST: (0.0, 0.4, 0.7, 0.0),
    Collective.REDUCE: (0.2, 0.4, 0.7, 0.0),
    Collective.ALL_TO_ALL: (0.0, 0.0, 0.0, 2.0),
    Collective.SENDRECV: (0.0, 0.0, 0.8, 1.0),
}
"""Those that move data alike lie near to each other."""

BROAD = ("amd", "switch", "mesh", "pcie", "nodes", "rdma", "plugin", "sockets", "in_process", "untuned", "unknown")
HARDWARE = (
    *BROAD,
    "wire",
    "memory",
    "pcie_gbps",
    "generation",
    "card",
    "cards",
    "tuned",
    "version",
    "forced_ring",
    "forced_tree",
    "direct",
)
SHAPE = ("reduce", "gather", "chain", "scatter", "gpus", "log_nodes")
NAMES = (*HARDWARE, *SHAPE)


def scale(gpus: GpuSet) -> float:
    """How much further than elsewhere physics may be off: what PCIe does hangs on settings (access control, peers,
    virtual machines) that cannot be observed, and several nodes have more to hide than one."""
    if gpus.domains > 1:
        return 1.3
    return 2.5 if gpus.way is Way.PCIE else 1.0


def describe(gpus: GpuSet, kind: Collective) -> Vector:
    """One number per name of ``NAMES``, of the order of one where they differ."""
    network, software = gpus.network, gpus.software
    several, way, transport = gpus.domains > 1, gpus.way, software.transport
    hardware = (
        gpus.gpu.vendor == "amd",
        way is Way.SWITCH,
        way is Way.MESH,
        way is Way.PCIE,
        several,
        several and transport is Transport.RDMA,
        several and transport is Transport.PLUGIN,
        several and transport in (Transport.SOCKETS, Transport.TCPX),
        software.in_process,
        2.0 * (software.tuned is False),
        2.0 * bool(gpus.unknown),
        _log(gpus.gpu.link_gbps, 300.0),
        _log(gpus.gpu.memory_gbps, 2000.0),
        _log(gpus.gpu.pcie_gbps, 32.0),
        gpus.gpu.generation / 3,
        _log(network.card_gbps, 25.0) if network else 0.0,
        _log(network.total_gbps, 200.0) / 2 if network else 0.0,
        0.5 * (software.tuned is True),
        (software.version[1] - 25) / 10 if software.version[0] == 2 else 0.0,
        software.algorithm == "ring",
        software.algorithm == "tree",
        software.direct,
    )
    shape = (*_COLLECTIVES[kind], math.log2(gpus.domain_gpus) / 3, math.log2(gpus.domains) / 2)
    return np.array((*hardware, *shape), dtype=np.float64)


def _log(value: float, about: float) -> float:
    return math.log2(value / about) if value > 0 else 0.0


def weights_at(size_bytes: int) -> tuple[int, float]:
    """The knot below and the share of the one above."""
    at = min(max(math.log2(max(1, size_bytes)), KNOTS[0]), KNOTS[-1])
    below = min(int((at - KNOTS[0]) // 3), len(KNOTS) - 2)
    return below, float((at - KNOTS[below]) / 3)
