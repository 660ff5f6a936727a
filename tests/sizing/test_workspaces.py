"""Workspaces of convolutions: how large, when they count, and that nothing fails for want of one."""

from dataclasses import replace
from typing import Any

import pytest
from sizing.traces import message, read, rows

from kopt.core.units import MIB
from kopt.models.sizing.code import from_trace
from kopt.tracing.events import Convolution, Event, Pass, Trace
from kopt.tracing.timeline import replay
from kopt.tracing.workspaces import fourier_bytes, layout_bytes, unfolded_bytes

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


@pytest.mark.parametrize(
    ("changed", "tiles"),
    [
        # Two of 30 results in each direction, of 8 pictures with 64 channels and as many results with 128.
        ({}, 8 * 4 * (64 + 128) + 64 * 128),
        ({"dtype": "float16"}, 8 * 4 * (64 + 128) + 64 * 128),
        ({"source": (8, 64, 4, 4)}, 8 * (64 + 128) + 64 * 128),
        ({"source": (8, 64, 56, 28)}, 8 * 2 * (64 + 128) + 64 * 128),
        ({"stride": (2, 2)}, 0),
        ({"dilation": (2,)}, 0),
        ({"weight": (128, 64, 1, 1), "padding": (0, 0)}, 0),
        ({"weight": (128, 64, 33, 3)}, 0),
        ({"source": (8, 64, 7, 7), "weight": (128, 64, 7, 7), "padding": (0, 0)}, 0),
        ({"weight": (128, 2, 3, 3), "groups": 32}, 0),
        ({"transposed": True}, 0),
        ({"source": (8, 64, 100), "weight": (128, 64, 5), "padding": (0,), "stride": (1,), "dilation": (1,)}, 0),
    ],
)
def test_frequencies_fill_a_tile_for_each_picture_weight_and_result(changed: dict[str, object], tiles: int) -> None:
    assert fourier_bytes(replace(PICTURES, **changed)) == tiles * 32 * 17 * 8  # type: ignore[arg-type]


def test_room_for_frequencies_is_left_to_searches_alone_as_far_as_the_card_has_it() -> None:
    trace = _trace(Pass.FORWARD | Pass.SEARCHED)
    held = replay(trace).peak_reserved_bytes
    assert replay(trace).search_bytes == fourier_bytes(PICTURES)
    assert replay(trace, card_bytes=held + 5 * MIB).search_bytes == 5 * MIB
    assert replay(_trace(Pass.FORWARD)).search_bytes == 0
    code, _ = from_trace(trace)
    assert code.search_bytes == fourier_bytes(PICTURES)
    assert "frequencies" in code.assumptions[-1]


_SHAPES = {
    "3x3": ((64, 64, 56, 56), (64, 64, 3, 3), 1, 1),
    "1x1": ((64, 256, 56, 56), (64, 256, 1, 1), 1, 0),
    "1x1, wider": ((64, 64, 56, 56), (256, 64, 1, 1), 1, 0),
    "3x3, every second": ((64, 128, 56, 56), (128, 128, 3, 3), 2, 1),
    "1x1, every second": ((64, 256, 56, 56), (512, 256, 1, 1), 2, 0),
    "7x7 of a picture": ((64, 3, 224, 224), (64, 3, 7, 7), 2, 3),
    "32 groups": ((64, 128, 56, 56), (128, 4, 3, 3), 1, 1),
}
_A100, _RTX_3090, _T4 = (8, 0), (8, 6), (7, 5)
_BACKWARD = Pass.INPUT_GRADIENT | Pass.WEIGHT_GRADIENT


@pytest.mark.parametrize(
    ("capability", "dtype", "shape", "forward_mib", "backward_mib"),
    [
        (_A100, "float32", "3x3", 49.1, 107.5),
        (_A100, "float32", "1x1", 196.1, 247.3),
        (_A100, "float32", "1x1, wider", 49.1, 247.3),
        (_A100, "float32", "3x3, every second", 98.6, 128.1),
        (_A100, "float32", "1x1, every second", 196.5, 302.5),
        (_A100, "float32", "7x7 of a picture", 232.8, 249.7),
        (_A100, "float32", "32 groups", 196.0, 197.1),
        (_A100, "float16", "3x3", 49.1, 51.4),
        (_A100, "float16", "1x1", 122.5, 125.4),
        (_A100, "float16", "3x3, every second", 61.5, 66.6),
        (_RTX_3090, "float32", "3x3", 49.1, 99.1),
        (_RTX_3090, "float32", "3x3, every second", 98.6, 125.3),
        (_RTX_3090, "float32", "7x7 of a picture", 0.1, 248.9),
        (_RTX_3090, "float16", "1x1, every second", 147.0, 147.0),
        (_T4, "float32", "3x3", 0.0, 0.4),
        (_T4, "float32", "1x1", 0.0, 0.0),
        (_T4, "float16", "3x3", 49.1, 49.1),
    ],
)
def test_copies_for_tensor_cores_are_those_that_cudnn_asks_for(
    capability: tuple[int, int], dtype: str, shape: str, forward_mib: float, backward_mib: float
) -> None:
    """Workspaces of the first plan of cuDNN 9.26's heuristics, asked for a GPU by its description."""
    source, weight, stride, padding = _SHAPES[shape]
    groups = source[1] // weight[1]
    convolution = Convolution(source, weight, (stride,), (padding,), (1,), groups, False, dtype, False)
    for passes, mib in ((Pass.FORWARD, forward_mib), (_BACKWARD, backward_mib)):
        assert layout_bytes(convolution, passes, capability) / MIB == pytest.approx(mib, rel=0.2, abs=1.0)


@pytest.mark.parametrize(
    ("changed", "capability"),
    [
        ({"channels_last": True}, _A100),
        ({"dtype": "float64"}, _A100),
        ({"weight": (64, 1, 3, 3), "groups": 64}, _A100),
        ({}, (7, 0)),
        ({}, None),
    ],
)
def test_nothing_is_copied_where_no_tensor_core_needs_it(changed: dict[str, object], capability: Any) -> None:
    """Pictures that lie so already, other precisions, single channels, older GPUs and other vendors'."""
    assert layout_bytes(replace(PICTURES, **changed), _BACKWARD, capability) == 0  # type: ignore[arg-type]


def test_a_transposed_convolution_copies_its_larger_result() -> None:
    changed = replace(PICTURES, transposed=True, weight=(64, 32, 2, 2), stride=(2, 2), padding=(0, 0))
    source, result, weight = 8 * 64 * 56 * 56, 8 * 32 * 112 * 112, 64 * 32 * 2 * 2
    assert layout_bytes(changed, Pass.FORWARD, _A100) == 4 * (source + result + weight)


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


def test_room_for_a_search_holds_the_unfolded_picture_where_that_is_larger() -> None:
    """A VGG-11 on 128 pictures took more than the replay has, though it has no use for frequencies of that size."""
    trace = _trace(Pass.FORWARD | Pass.SEARCHED, sides=112)
    large = replace(PICTURES, source=(8, 64, 112, 112))
    assert replay(trace).search_bytes == unfolded_bytes(large) > fourier_bytes(large)


def test_a_search_takes_the_workspace_while_the_convolution_runs() -> None:
    workspace = 4 * 8 * 64 * 9 * 56 * 56
    found = replay(_trace(Pass.FORWARD | Pass.SEARCHED))
    # A block is not split for a rest of less than a mebibyte.
    assert 0 <= found.peak_allocated_bytes - 50 * MIB - workspace <= MIB
    assert found.breakdown.temporary == found.peak_allocated_bytes
    assert int(found.allocated[-1]) == 52 * MIB
    assert found.phases[0].allocated_bytes == found.peak_allocated_bytes
    assert found.peak_reserved_bytes >= found.peak_allocated_bytes


def test_without_a_search_there_are_the_copies_for_tensor_cores_alone() -> None:
    trace = _trace(Pass.FORWARD)
    assert replay(trace).peak_allocated_bytes == 52 * MIB
    assert replay(trace, capability=_T4).peak_allocated_bytes == 52 * MIB
    copies = 4 * (8 * 64 * 56 * 56 + 128 * 64 * 9)
    assert 0 <= replay(trace, capability=_A100).peak_allocated_bytes - 50 * MIB - copies <= MIB


def test_what_a_search_took_is_given_back() -> None:
    """PyTorch empties its cache after a search; what runs later runs beside the copies it needs alone."""
    workspace = 4 * 8 * 64 * 9 * 56 * 56
    searched, found = replay(_trace(Pass.FORWARD | Pass.SEARCHED)), replay(_trace(Pass.FORWARD), capability=_A100)
    assert int(searched.reserved[-1]) <= searched.peak_reserved_bytes - workspace // 2
    assert int(found.reserved[-1]) == found.peak_reserved_bytes


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


def test_a_large_workspace_widens_the_answer_upwards_and_is_told() -> None:
    trace = _trace(Pass.FORWARD)
    plain, _ = from_trace(trace)
    widened, line = from_trace(trace, capability=_A100)
    assert (plain.above, plain.assumptions) == (1, ())
    assert widened.above == 1 + line.workspace_bytes / line.peak_reserved_bytes
    assert "cuDNN 9" in widened.assumptions[-1]
