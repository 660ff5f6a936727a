"""Workspaces of convolutions: how large, when they count, and that nothing fails for want of one."""

from dataclasses import replace

import pytest
from sizing.traces import message, read, rows

from kopt.core.units import MIB
from kopt.tracing.events import Convolution, Event, Pass, Trace
from kopt.tracing.timeline import replay
from kopt.tracing.workspaces import unfolded_bytes

PICTURES = Convolution((8, 64, 56, 56), (128, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1, False, "float32", False)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 4 * 8 * 64 * 9 * 56 * 56),
        ({"dtype": "bfloat16"}, 2 * 8 * 64 * 9 * 56 * 56),
        ({"stride": (2, 2)}, 4 * 8 * 64 * 9 * 28 * 28),
        ({"stride": (2,), "padding": (0,)}, 4 * 8 * 64 * 9 * 27 * 27),
        ({"dilation": (2, 2)}, 4 * 8 * 64 * 9 * 54 * 54),
        ({"weight": (128, 64, 1, 1), "padding": (0, 0)}, 0),
        ({"weight": (128, 2, 3, 3), "groups": 32}, 0),
        ({"transposed": True, "weight": (64, 32, 2, 2), "stride": (2, 2)}, 4 * 8 * 32 * 4 * 56 * 56),
        ({"source": (8, 64, 2, 2), "weight": (128, 64, 7, 7), "padding": (0, 0)}, 4 * 8 * 64 * 49),
        ({"source": (8, 64, 100), "weight": (128, 64, 5), "padding": (0,), "stride": (1,), "dilation": (1,)}, 983_040),
    ],
)
def test_the_unfolded_picture_holds_every_pixel_once_for_each_place_of_the_kernel(
    changed: dict[str, object], expected: int
) -> None:
    assert unfolded_bytes(replace(PICTURES, **changed)) == expected  # type: ignore[arg-type]


def _trace(passes: int, sides: int = 56, freed: int = 0) -> Trace:
    """50 MiB that stay, some that were freed, a convolution, and 2 MiB after it."""
    told = {
        "id": 5,
        "input": [8, 64, sides, sides],
        "weight": [128, 64, 3, 3],
        "stride": [1, 1],
        "padding": [1, 1],
        "dilation": [1, 1],
        "groups": 1,
        "transposed": False,
        "dtype": "float32",
        "channels_last": False,
    }
    return read(
        message(convolution=told),
        message(name=[1, "forward"]),
        rows((Event.PHASE, 1, 0), (Event.ALLOC, 1, 50 * MIB)),
        rows((Event.ALLOC, 3, freed * MIB), (Event.FREE, 3)),
        rows((Event.CONVOLUTION, 5, passes), (Event.ALLOC, 2, 2 * MIB)),
    )


def test_a_search_takes_the_workspace_while_the_convolution_runs() -> None:
    workspace = 4 * 8 * 64 * 9 * 56 * 56
    found = replay(_trace(Pass.FORWARD | Pass.SEARCHED))
    # A block is not split for a rest of less than a mebibyte.
    assert 0 <= found.peak_allocated_bytes - 50 * MIB - workspace <= MIB
    assert found.breakdown.temporary == found.peak_allocated_bytes
    assert int(found.allocated[-1]) == 52 * MIB
    assert found.phases[0].allocated_bytes == found.peak_allocated_bytes
    assert found.peak_reserved_bytes >= found.peak_allocated_bytes


def test_without_a_search_there_is_none() -> None:
    assert replay(_trace(Pass.FORWARD)).peak_allocated_bytes == 52 * MIB


def test_a_workspace_that_does_not_fit_is_no_failure() -> None:
    """Neither of what the allocator may have nor of the card."""
    trace = _trace(Pass.INPUT_GRADIENT | Pass.SEARCHED)
    for found in (replay(trace, capacity_bytes=80 * MIB), replay(trace, card_bytes=80 * MIB)):
        assert not found.out_of_memory
        assert found.peak_allocated_bytes == 52 * MIB


def test_a_search_may_have_what_was_only_cached() -> None:
    """28 MiB that are free again lie in a segment too small for the workspace: they are given back for it."""
    trace = _trace(Pass.FORWARD | Pass.SEARCHED, freed=28)
    assert replay(trace, card_bytes=110 * MIB).peak_reserved_bytes <= 110 * MIB
    assert replay(trace, card_bytes=110 * MIB).peak_allocated_bytes > 100 * MIB
    assert replay(trace).peak_reserved_bytes > 120 * MIB


def test_a_made_up_size_is_no_failure_either() -> None:
    found = replay(_trace(Pass.FORWARD | Pass.SEARCHED, sides=1 << 30))
    assert found.peak_allocated_bytes == 52 * MIB
