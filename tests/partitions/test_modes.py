"""Modes of AMD's GPUs: what AMD has validated, what a profile comes to, and plans on random mixes."""

import contextlib
import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.amd_modes import AmdMode, ModeError, amd_mode, driver_version, modes_of
from kopt.policies.partitions.configurations import InfeasibleError, NodeOption
from kopt.policies.partitions.drain import Drain, DrainSettings, RunningPod, best_drain
from kopt.policies.partitions.modes import mode_geometry, mode_option, smallest_mode
from kopt.policies.partitions.plan import PartitionPool, PlanNode, plan_partitions

MI300X, GPUS, NEW = modes_of(find_gpu("AMD_Instinct_MI300X_OAM")), 8, "30.20.1"
GEOMETRY = mode_geometry(MI300X.model)
WHOLE, HALF, SMALL = "spx_nps1", "dpx_nps2", "cpx_nps4"
OPTIONS = [mode_option(MI300X, GPUS, name, [(amd_mode(name), None)], NEW) for name in (WHOLE, HALF, SMALL)]
DIES = {profile.name: profile.compute_slices for profile in GEOMETRY.profiles}


@pytest.mark.parametrize(
    ("model", "mode", "driver", "says"),
    [
        ("mi300x", "CPX/NPS4", "6.10.5", r"needs amdgpu 6\.12\.12 \(ROCm 6\.4\), not 6\.10\.5"),
        ("mi300x", "CPX/NPS4", "", r"amd\.com/gpu\.driver-version"),
        ("mi300x", "CPX/NPS1", NEW, r"AMD has not validated it; validated: SPX/NPS1 .* CPX/NPS4 \(ROCm 6\.4\)"),
        ("mi300x", "QPX/NPS2", NEW, "it has no such mode"),
        ("mi325x", "CPX/NPS4", NEW, r"validated: SPX/NPS1 \(ROCm 6\.2\.3\)$"),
        ("mi355x", "QPX/NPS2", NEW, r"needs amdgpu 31\.40 \(ROCm 7\.13\), not 30\.20\.1"),
    ],
)
def test_a_mode_that_is_not_supported_is_refused_with_what_would_do(
    model: str, mode: str, driver: str, says: str
) -> None:
    with pytest.raises(ModeError, match=says):
        modes_of(find_gpu(model)).require(amd_mode(mode), driver)


def test_what_is_validated_is_accepted_from_its_driver_on() -> None:
    for name in ("MI300X", "MI325X", "MI350X", "MI355X"):
        modes = modes_of(find_gpu(name))
        for each in modes.validated:
            assert modes.require(each.mode, each.driver) == each
            assert each.mode not in modes.accepted
    assert modes_of(find_gpu("mi355x")).require(AmdMode("CPX", "NPS2"), "31.40.1-2345").rocm == "7.13"
    with pytest.raises(ModeError, match=r"H100.* has no partition modes; these have: MI300X"):
        modes_of(find_gpu("h100-80gb"))


@given(st.text(max_size=60))
def test_nothing_that_is_written_breaks_a_reader(text: str) -> None:
    version = driver_version(text)
    assert version is None or text.strip().startswith(str(version[0])) or text.strip()[0] == "0"
    with contextlib.suppress(ModeError):
        assert amd_mode(text).partitions in (1, 2, 4, 8)


def test_profiles_that_cannot_be_are_refused() -> None:
    cpx, spx = amd_mode("CPX/NPS4"), amd_mode("SPX/NPS1")
    with pytest.raises(InfeasibleError, match="NPS1 and NPS4: all GPUs of a node have one memory mode"):
        mode_option(MI300X, GPUS, "mixed", [(cpx, 4), (spx, 4)], NEW)
    with pytest.raises(InfeasibleError, match="is for 4 GPUs and leaves 2 as they are; the node has 8"):
        mode_option(MI300X, GPUS, "some", [(cpx, 4)], NEW, skips=2)
    with pytest.raises(InfeasibleError, match="the rest of the GPUs to 2 modes"):
        mode_option(MI300X, GPUS, "two", [(cpx, None), (cpx, None)], NEW)
    assert mode_option(MI300X, GPUS, "cpx", [(cpx, 8)], NEW).instances == {SMALL: 64}


def test_the_smallest_mode_has_the_memory_and_the_share() -> None:
    offered, gib = {WHOLE, HALF, SMALL}, 1 << 30
    assert smallest_mode(MI300X, offered, 20 * gib) == SMALL
    assert smallest_mode(MI300X, offered, 20 * gib, 200) == HALF
    assert smallest_mode(MI300X, {WHOLE, SMALL}, 30 * gib) == WHOLE
    assert smallest_mode(MI300X, offered, 193 * gib) is None


@st.composite
def pools(draw: st.DrawFn, most: int = 5) -> PartitionPool:
    nodes = []
    for at in range(draw(st.integers(1, most))):
        have = draw(st.sampled_from(OPTIONS)).instances
        used = {name: draw(st.integers(0, count)) for name, count in have.items()}
        nodes.append(PlanNode(f"n{at}", have, used, not any(used.values()) and draw(st.booleans())))
    pending = {WHOLE: draw(st.integers(0, 20)), HALF: draw(st.integers(0, 40)), SMALL: draw(st.integers(0, 150))}
    return PartitionPool(GEOMETRY, nodes, OPTIONS, pending, {WHOLE: 20, HALF: 20, SMALL: 60})


def served(pool: PartitionPool, states: list[tuple[PlanNode, NodeOption | None]]) -> int:
    supply = Counter[str]()
    for node, option in states:
        supply.update(node.instances if option is None else option.instances)
        supply.subtract(node.used if option is None else {})
    return sum(DIES[name] * min(count, supply[name]) for name, count in pool.pending.items())


@settings(max_examples=60, deadline=None)
@given(pools())
def test_no_other_plan_of_modes_serves_more(pool: PartitionPool) -> None:
    plan = plan_partitions(pool)
    for name in plan.changes:
        assert next(node for node in pool.nodes if node.name == name).may_change
    choices = [[None, *OPTIONS] if node.may_change else [None] for node in pool.nodes]
    best = max(served(pool, list(zip(pool.nodes, chosen, strict=True))) for chosen in itertools.product(*choices))
    assert served(pool, [(node, plan.changes.get(node.name)) for node in pool.nodes]) == best


@settings(max_examples=200, deadline=None)
@given(
    pools(),
    st.lists(st.tuples(st.one_of(st.none(), st.floats(0, 1e5)), st.one_of(st.none(), st.floats(0, 2e4))), max_size=9),
    st.floats(1, 1e5),
)
def test_a_node_is_emptied_only_where_that_wins_more_than_it_costs(
    pool: PartitionPool, known: list[tuple[float | None, float | None]], horizon_s: float
) -> None:
    pods = {
        node.name: [RunningPod(f"p{at}", 1.0, lost, left) for at, (lost, left) in enumerate(known)]
        for node in pool.nodes
        if any(node.used.values())
    }
    limits = DrainSettings(horizon_s, 600.0, 2.0)
    drain, refusals = best_drain(pool, pods, limits)
    assert {each.node for each in refusals} <= pods.keys()
    if drain is None:
        return
    assert drain.node in pods
    assert drain.won_gpu_s >= limits.least_ratio * drain.lost_gpu_s
    unknown = any(lost is None for lost, _ in known)
    assert not (drain.evicts and unknown)
    if not drain.evicts:
        assert all(left is not None and left <= drain.until_s <= horizon_s for _, left in known)
    # It serves more than before, by what it says.
    states = [(node, drain.option if node.name == drain.node else None) for node in pool.nodes]
    assert served(pool, states) > served(pool, [(node, None) for node in pool.nodes])
    assert sum(DIES[name] * count for name, count in drain.served.items()) >= 1


def _busy(lost: float | None, left: float | None = None, **settings_: float) -> Drain | None:
    nodes = [PlanNode("n", OPTIONS[0].instances, {WHOLE: 2})]
    pool = PartitionPool(GEOMETRY, nodes, OPTIONS, {SMALL: 48}, {})
    pods = [RunningPod("a", 1.0, lost, left), RunningPod("b", 1.0, lost, left)]
    return best_drain(pool, {"n": pods}, DrainSettings(**{"horizon_s": 14_400.0, **settings_}))[0]


def test_what_would_be_lost_decides() -> None:
    """Six GPUs' worth of requests wait for four hours; two pods are in the way."""
    cheap = _busy(600.0)
    assert cheap is not None
    assert cheap.evicts
    assert cheap.option.name == SMALL
    # The two that are evicted want whole GPUs, of which there are none afterwards: they count as waiting.
    assert cheap.lost_gpu_s == pytest.approx(2 * 600 + 2 * 14_400 + 8 * 600)
    assert _busy(40_000.0) is None
    assert _busy(None) is None
    waited = _busy(None, 300.0)
    assert waited is not None
    assert not waited.evicts
    assert waited.until_s == 300
    assert _busy(600.0, horizon_s=600.0) is None
