"""Figures of one model at several batch sizes, and which of them are no need of memory."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kopt.core.units import GIB, MIB, Bytes
from kopt.data.memory.batches import STOPPED, UNNEEDED, Figure, doubts


def _figures(*each: tuple[int, float, float]) -> dict[int, Figure]:
    return {batch: Figure(Bytes(int(used * MIB)), Bytes(int(own * MIB))) for batch, used, own in each}


def test_figures_that_grow_with_the_batch_are_believed() -> None:
    assert doubts(_figures((8, 2937, 748), (16, 3909, 1433), (32, 5747, 2843), (64, 9345, 5678))) == {}


def test_what_a_larger_batch_ran_in_was_not_needed_by_a_smaller_one() -> None:
    found = doubts(_figures((8, 38835, 768), (16, 4489, 1479), (32, 38835, 2942), (64, 10151, 5876)))
    # The two that are equal are both wrong; they say nothing about the others.
    assert found == {8: STOPPED, 32: STOPPED}
    assert doubts(_figures((8, 6929, 632), (16, 3581, 1200), (32, 5079, 2359))) == {8: UNNEEDED}


def test_a_run_that_stopped_early_says_nothing_about_smaller_batches() -> None:
    assert doubts(_figures((8, 14463, 8392), (16, 20811, 14031), (32, 7745, 32953))) == {32: STOPPED}
    assert doubts(_figures((16, 2321, 1493), (32, 2321, 2660))) == {16: STOPPED, 32: STOPPED}


def test_repeated_runs_differ_a_little() -> None:
    assert doubts(_figures((8, 3050, 900), (16, 3000, 1000))) == {}


@given(st.dictionaries(st.integers(1, 512), st.integers(2 * GIB, 40 * GIB), min_size=1, max_size=5))
def test_the_largest_batch_that_ran_is_never_called_unneeded(used: dict[int, int]) -> None:
    found = doubts({batch: Figure(Bytes(measured), Bytes(1)) for batch, measured in used.items()})
    ran = [batch for batch in used if found.get(batch) != STOPPED]
    assert all(found.get(batch) in (None, UNNEEDED) for batch in ran)
    assert not ran or max(ran) not in found
    kept = sorted(batch for batch in ran if batch not in found)
    assert all(used[a] <= 1.02 * used[b] for a, b in itertools.pairwise(kept))
