"""The ladder over configurations that a cluster offers, and the evidence that moves a node on it."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.sharing.modes import SharingMode
from kopt.core.sharing.pressure import Pressure
from kopt.formats.sharing_terms import ReplicaSetting
from kopt.policies.fractions.configured import Rung, configured_rungs, next_rung, used_time, without_mps
from kopt.policies.fractions.ladder import LadderSettings, LadderState

MPS, TURNS, WHOLE = SharingMode.MPS, SharingMode.TIME_SLICING, SharingMode.EXCLUSIVE
OFFERED = {
    "mps-8": ReplicaSetting(MPS, 8),
    "mps-4": ReplicaSetting(MPS, 4),
    "mps-2": ReplicaSetting(MPS, 2),
    "also-two": ReplicaSetting(MPS, 2),
    "turns-8": ReplicaSetting(TURNS, 8),
    "turns-4": ReplicaSetting(TURNS, 4),
    "whole": ReplicaSetting(WHOLE),
}
SETTINGS = LadderSettings()
HARD, EASY, IDLE = Pressure(sm_active=0.99, memory=0.5), Pressure(sm_active=0.5, memory=0.5), Pressure(None, 0.0, 0.0)


def names(own: str, **latency: bool) -> list[str]:
    own_rung = Rung(own, OFFERED[own])
    return [rung.name for rung in configured_rungs(own_rung, OFFERED, **({"keeps_latency": False} | latency))]


@pytest.mark.parametrize(
    ("own", "keeps_latency", "expected"),
    [
        ("mps-4", False, ["mps-4", "also-two", "turns-4", "whole"]),
        ("mps-4", True, ["mps-4", "also-two", "whole"]),
        ("mps-8", False, ["mps-8", "mps-4", "also-two", "turns-8", "turns-4", "whole"]),
        ("turns-8", True, ["turns-8", "turns-4", "whole"]),
        ("whole", False, ["whole"]),
    ],
)
def test_rungs_are_what_the_cluster_offers_in_the_order_of_the_ladder(
    own: str, keeps_latency: bool, expected: list[str]
) -> None:
    assert names(own, keeps_latency=keeps_latency) == expected


def test_without_the_daemon_pods_take_turns_in_the_same_number() -> None:
    own = Rung("mps-4", OFFERED["mps-4"])
    rungs = configured_rungs(own, OFFERED, keeps_latency=False)
    fallen = without_mps(rungs, own)
    assert fallen is not None
    assert fallen.name == "turns-4"
    assert without_mps([own], own) is None


def every_30_s(pressure: Pressure, span_s: float, start_s: float = 0.0) -> list[tuple[float, Pressure]]:
    return [(start_s + 30.0 * at, pressure) for at in range(math.ceil(span_s / 30) + 1)]


OWN = LadderState()


def wanted(
    history: list[tuple[float, Pressure]], state: LadderState = OWN, now_s: float = 10_000.0
) -> tuple[str, str] | None:
    rungs = configured_rungs(Rung("mps-4", OFFERED["mps-4"]), OFFERED, keeps_latency=False)
    change = next_rung(rungs, state, history, now_s, SETTINGS)
    return None if change is None else (change.rung.name, change.reason.code)


def test_contention_moves_a_node_down_and_a_calm_up() -> None:
    assert wanted(every_30_s(HARD, 60)) == ("also-two", "SHARING_CONTENDED")
    assert wanted(every_30_s(HARD, 30)) is None
    # It was contended and is not any more.
    assert wanted([*every_30_s(HARD, 600), *every_30_s(EASY, 60, 630.0)]) is None
    lowered = LadderState(1, wait_s=900.0, moved_s=0.0)
    assert wanted(every_30_s(EASY, 900, 330.0), lowered) == ("mps-4", "SHARING_CALM")
    assert wanted(every_30_s(EASY, 900, 0.0), lowered) is None, "what was before the change had settled counts"


def test_time_in_which_nobody_used_the_gpus_is_no_evidence() -> None:
    lowered = LadderState(1, wait_s=900.0, moved_s=0.0)
    assert wanted(every_30_s(IDLE, 20_000, 330.0), lowered) is None
    # Two spans of use with a night between them are as long as both of them.
    nights = [*every_30_s(EASY, 300, 330.0), *every_30_s(IDLE, 30_000, 800.0), *every_30_s(EASY, 300, 40_000.0)]
    assert wanted(nights, lowered, 41_000.0) is None
    assert wanted([*nights, *every_30_s(EASY, 210, 40_330.0)], lowered, 41_000.0) == ("mps-4", "SHARING_CALM")


def test_a_calm_lasts_twice_as_long_after_a_step_up_that_did_not_hold() -> None:
    raised = LadderState(0, wait_s=900.0, raised_s=0.0, moved_s=0.0)
    rungs = configured_rungs(Rung("mps-4", OFFERED["mps-4"]), OFFERED, keeps_latency=False)
    change = next_rung(rungs, raised, every_30_s(HARD, 90, 330.0), 500.0, SETTINGS)
    assert change is not None
    assert (change.state.rung, change.state.wait_s, change.state.moved_s) == (1, 1800.0, 500.0)


@given(st.lists(st.tuples(st.integers(1, 400), st.booleans()), max_size=40))
def test_used_time_is_in_order_and_never_longer_than_the_clock(steps: list[tuple[int, bool]]) -> None:
    history, now_s = [], 0.0
    for span_s, is_used in steps:
        now_s += span_s
        history.append((now_s, EASY if is_used else IDLE))
    used = used_time(history)
    times = [at_s for at_s, _ in used]
    assert times == sorted(times)
    assert len(used) == sum(is_used for _, is_used in steps)
    assert all(later - earlier <= 60.0 for earlier, later in itertools.pairwise(times))
    if used:
        assert times[-1] == max(at_s for at_s, each in history if each is EASY)
