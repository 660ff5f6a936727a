"""Which nodes break jobs, by a test that few failures do not pass; and how many nodes may be kept free."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.hardware.health import Outcome
from kopt.policies.health import Candidate, failing_nodes, kept_free


def jobs(node: str, *failed: bool, start_s: float = 0.0, family: str = "") -> list[Outcome]:
    return [
        Outcome(node, f"{node}-{n}", bad, start_s + 60.0 * n, family or f"f{n % 7}") for n, bad in enumerate(failed)
    ]


POOL = [outcome for n in range(10) for outcome in jobs(f"n{n}", *([False] * 18), True, False)]


def test_two_failures_of_a_new_node_condemn_nothing() -> None:
    assert not failing_nodes([*POOL, *jobs("new", True, True, True)])


def test_ten_failures_of_jobs_that_end_well_elsewhere_do() -> None:
    why = failing_nodes([*POOL, *jobs("lemon", *([True] * 10))])
    assert list(why) == ["lemon"]
    assert why["lemon"].startswith("10 of its last 10 jobs failed; in the pool ")


def test_a_node_that_was_well_for_long_is_found_as_soon() -> None:
    assert list(failing_nodes([*POOL, *jobs("worn", *([False] * 30), *([True] * 10))])) == ["worn"]


def test_a_job_that_fails_wherever_it_runs_blames_no_node() -> None:
    broken = [Outcome(f"n{n % 10}", f"broken-{n // 3}", True, 200.0 * n, f"f{n % 7}") for n in range(90)]
    assert not failing_nodes([*POOL, *broken])


def test_a_person_who_tries_again_and_again_blames_no_node() -> None:
    assert not failing_nodes([*POOL, *jobs("n3", *([True] * 40), start_s=9e3, family="x/debug")])


def test_of_a_job_over_nodes_the_one_that_failed_first_is_to_blame() -> None:
    several = [
        Outcome(node, f"wide-{n}", True, 1e4 * n + (0.0 if node == "n1" else 5.0), f"f{n % 7}")
        for n in range(12)
        for node in ("n1", "n2", "n3")
    ]
    assert list(failing_nodes([*POOL, *several])) == ["n1"]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.02, 0.35))
def test_healthy_nodes_of_any_pool_pass(seed: int, rate: float) -> None:
    chance = random.Random(seed)
    outcomes = [outcome for n in range(20) for outcome in jobs(f"n{n}", *(chance.random() < rate for _ in range(40)))]
    assert not failing_nodes(outcomes)


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        st.integers(0, 10**6).map(str),
        st.sampled_from(["h100", "a100"]),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.floats(0, 3),
    ),
    max_size=40,
    unique_by=lambda candidate: candidate.name,
)


@given(CANDIDATES, st.floats(0, 1))
def test_never_more_of_a_pool_than_its_share(candidates: list[Candidate], share: float) -> None:
    closed = kept_free(candidates, share)
    assert all(candidate.condemned for candidate in candidates if candidate.name in closed)
    for pool in ("h100", "a100"):
        nodes = [candidate for candidate in candidates if candidate.pool == pool]
        away = sum(node.name in closed or (node.unavailable and not node.closed) for node in nodes)
        ours = sum(node.name in closed for node in nodes)
        assert not ours or away <= share * len(nodes) + 1e-6


@given(CANDIDATES, st.floats(0, 1))
def test_what_is_closed_stays_so(candidates: list[Candidate], share: float) -> None:
    closed = kept_free(candidates, share)
    again = [
        Candidate(each.name, each.pool, each.condemned, each.name in closed, each.unavailable, 3.0 - each.load)
        for each in candidates
        if each.name in closed or not each.closed
    ]
    if len(again) == len(candidates):
        assert kept_free(again, share) == closed


def test_a_share_of_three_nodes_may_be_none() -> None:
    nodes = [Candidate(str(n), "p", condemned=True, load=n) for n in range(10)]
    assert kept_free(nodes[:3], 0.3) == frozenset()
    assert kept_free(nodes, 0.3) == {"7", "8", "9"}
    with pytest.raises(ValueError, match="0 to 1"):
        kept_free(nodes, 1.5)
