"""Above a convolutional network's centre there is room for amounts, however large it is; nothing else is bounded."""

from dataclasses import replace
from typing import Any

import pytest

from kopt.core.units import GIB, MIB, Bytes
from kopt.core.workload.sizing import AllocationKind, MemoryBreakdown, Method, TraceCoverage
from kopt.models.registry.shipped import shipped_folder
from kopt.models.sizing.code import CodeEstimate
from kopt.models.sizing.predictor import SizingPredictor
from kopt.models.sizing.room import room_above
from kopt.models.sizing.table import SizingQuestion

_MACHINE = 768.0 * MIB


def question(gib: int = 24, **changes: Any) -> SizingQuestion:
    """A network whose allocator reserves so many GiB; ``changes`` are of what its code says."""
    amount = Bytes(gib * GIB)
    parts = MemoryBreakdown(activations=amount)
    code = CodeEstimate(Method.ABSTRACT, TraceCoverage.FULL, amount, amount, parts, {"flops_convolution": 0.97})
    return SizingQuestion(replace(code, **changes), "A100-SXM4-40GB")


@pytest.fixture(scope="module")
def predictor() -> SizingPredictor:
    return SizingPredictor.load(shipped_folder("sizing"))


def above(predictor: SizingPredictor, asked: SizingQuestion) -> float:
    """Bytes between centre and upper end."""
    (found,) = predictor.predict(asked)
    assert found.value is not None
    assert found.high is not None
    return found.high - found.value


def test_a_large_network_has_room_for_amounts_and_says_nothing_of_a_wider_interval(predictor: SizingPredictor) -> None:
    (found,) = predictor.predict(question())
    assert "OUT_OF_DISTRIBUTION" not in [reason.code for reason in found.reasons]
    assert above(predictor, question()) == pytest.approx(room_above(question(), _MACHINE), abs=2)


def test_a_small_network_is_no_wider_than_before(predictor: SizingPredictor) -> None:
    assert above(predictor, question(1)) <= above(predictor, question(1, warnings=("it grew",)))


@pytest.mark.parametrize("part", ["workspace_bytes", "search_bytes"])
def test_what_an_algorithm_may_take_is_on_top(part: str) -> None:
    without, with_it = (room_above(question(**{part: Bytes(size)}), _MACHINE) for size in (0, 3 * GIB))
    assert without is not None
    assert with_it == without + 3 * GIB


@pytest.mark.parametrize(
    "other",
    [
        question(coverage=TraceCoverage.PARTIAL),
        question(warnings=("memory still grew",)),
        question(inputs={"flops_convolution": 0.1}),
        question(inputs={}),
        question(method=Method.ANALYTIC),
        replace(question(), world_size=2),
        replace(question(), gpu="MI300X"),
        replace(question(), metric=AllocationKind.RESERVED),
    ],
    ids=lambda other: f"{other.code.coverage.value}-{other.gpu}-{other.world_size}",
)
def test_what_was_not_measured_is_not_bounded(predictor: SizingPredictor, other: SizingQuestion) -> None:
    assert room_above(other, _MACHINE) is None
    if other.code.method is Method.ABSTRACT and other.metric is AllocationKind.PROCESS:
        assert above(predictor, other) > above(predictor, question())
