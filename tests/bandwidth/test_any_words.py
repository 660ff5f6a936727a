"""Whatever words a table describes hardware with, the answer is finite, ordered, and says when it does not know."""

import math

from example_budget import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kopt.core.hardware.bandwidth import BandwidthError, Collective
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.topology.hardware import HardwareRow, machine_of
from kopt.topology.rings import ring_gbps
from kopt.topology.set_links import gpu_set

_SHIPPED = load_bandwidth("shipped")
_GPUS = st.sampled_from(["H100", "MI300X", "MI250X", "V100", "", "RTX 4090", "T4", "x" * 400]) | st.text(max_size=20)
_LINKS = st.sampled_from(
    [
        "NVSwitch-NV18",
        "NV4-fullmesh-4",
        "PCIe9",
        "XGMI-mesh (1/2/4 links)",
        "HybridCubeMesh-NV1/2",
        "NV0",
        "mesh-99",
        "NV12 pairs",
        "NVLink",
        "cube-0",
        "",
    ]
) | st.text(max_size=20)
_NICS = st.sampled_from(["", "0x 0G", "8x NDR400", "999x", "0.0Tbps", "-1Gb", "8x HDR (0 used)", "IB"]) | st.text(
    max_size=20
)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    gpu=_GPUS,
    link=_LINKS,
    nics=_NICS,
    software=st.text(max_size=20),
    nodes=st.integers(1, 2**20),
    count=st.integers(1, 72),
    kind=st.sampled_from(Collective),
    exponent=st.integers(0, 44),
)
def test_every_description_has_a_finite_answer(
    gpu: str, link: str, nics: str, software: str, nodes: int, count: int, kind: Collective, exponent: int
) -> None:
    row = HardwareRow(gpu, "", link, nodes, count, nics, software)
    try:
        found = _SHIPPED.estimate_set(gpu_set(machine_of(row), range(count), nodes), kind, 2**exponent)
    except BandwidthError:
        assert count * nodes < 2
        return
    assert 0 < found.latency_low_us <= found.latency_us <= found.latency_high_us < math.inf
    assert 0 < found.bus_low_gigabytes_per_s <= found.bus_high_gigabytes_per_s < math.inf


_PAIRS = [(a, b) for a in range(5) for b in range(a + 1, 5)]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, 4), min_size=len(_PAIRS), max_size=len(_PAIRS)))
def test_rings_carry_no_more_than_any_gpu_has_links(counts: list[int]) -> None:
    capacities = {pair: 25.0 * n for (a, b), n in zip(_PAIRS, counts, strict=True) for pair in ((a, b), (b, a))}
    most = min(sum(capacities[one, other] for other in range(5) if other != one) for one in range(5))
    assert 0 <= ring_gbps(range(5), capacities) <= most + 1e-6
