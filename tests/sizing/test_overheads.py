"""What a process needs beside its tensors differs from GPU to GPU; unknown GPUs get what the others have in common."""

from dataclasses import replace

import numpy as np
import pytest

from kopt.core.units import MIB, Bytes
from kopt.core.workload.sizing import AllocationKind, MemoryBreakdown, Method, TraceCoverage
from kopt.models.sizing.code import CodeEstimate
from kopt.models.sizing.predictor import SizingPredictor
from kopt.models.sizing.table import OWN, MeasuredQuestion, SizingQuestion, sizing_table

_CONTEXTS_MIB = {"T4": 500, "A100-SXM4-40GB": 1100}


def question(mib: int, gpu: str) -> SizingQuestion:
    amount = Bytes(mib * MIB)
    code = CodeEstimate(Method.ABSTRACT, TraceCoverage.FULL, amount, amount, MemoryBreakdown(activations=amount))
    return SizingQuestion(code, gpu, metric=AllocationKind.PROCESS)


def measured(*, on: str, count: int = 60) -> list[MeasuredQuestion]:
    rng = np.random.default_rng(len(on))
    rows = []
    for n in range(count):
        mib = int(400 * 2 ** rng.uniform(0, 5))
        needed = Bytes((mib + _CONTEXTS_MIB[on] + int(rng.integers(-10, 10))) * MIB)
        rows.append(MeasuredQuestion(f"{on}-{n}", f"family-{n % 10}", OWN, question(mib, on), needed))
    return rows


@pytest.fixture(scope="module")
def predictor() -> SizingPredictor:
    rows = [*measured(on="T4"), *measured(on="A100-SXM4-40GB")]
    return SizingPredictor().fit(sizing_table(rows))


def overhead_mib(predictor: SizingPredictor, gpu: str) -> float:
    (found,) = predictor.predict(question(4096, gpu))
    assert found.value is not None
    return found.value / MIB - 4096


@pytest.mark.parametrize("gpu", _CONTEXTS_MIB)
def test_every_gpu_has_an_overhead_of_its_own(predictor: SizingPredictor, gpu: str) -> None:
    assert overhead_mib(predictor, gpu) == pytest.approx(_CONTEXTS_MIB[gpu], abs=60)


def test_a_gpu_that_was_never_measured_lies_between_the_others_and_is_less_sure(predictor: SizingPredictor) -> None:
    assert 440 <= overhead_mib(predictor, "V100-SXM2-32GB") <= 1160
    (known,), (unknown,) = (predictor.predict(question(512, gpu)) for gpu in ("T4", "MI300X"))
    assert unknown.high is not None
    assert known.high is not None
    assert unknown.high - (unknown.value or 0) > known.high - (known.value or 0)


def test_few_runs_on_a_gpu_do_not_move_its_overhead_far() -> None:
    rows = [*measured(on="T4"), *measured(on="A100-SXM4-40GB", count=1)]
    lone = SizingPredictor().fit(sizing_table(rows))
    constants = lone.parts["abstract"].residual.constants
    shared, own = constants["abstract-process"], constants["abstract-process A100-SXM4-40GB"]
    assert shared < own < (_CONTEXTS_MIB["A100-SXM4-40GB"] - 100) * MIB


def test_machines_differ_so_published_runs_say_less_of_a_small_process_than_own_ones() -> None:
    """Nothing but the machine decides what an idle process holds, and large jobs are as wide as before."""
    published = SizingPredictor().fit(sizing_table([replace(run, source="published") for run in measured(on="T4")]))
    own = SizingPredictor().fit(sizing_table(measured(on="T4")))
    for mib, wider in ((256, True), (1 << 20, False)):
        (theirs,), (ours,) = (model.predict(question(mib, "T4")) for model in (published, own))
        assert theirs.high is not None
        assert theirs.value is not None
        assert ours.high is not None
        assert (theirs.high > ours.high) is wider
        assert theirs.high >= theirs.value + 700 * MIB
    (small,) = published.predict(question(256, "T4"))
    assert small.low == 256 * MIB, "never less than its tensors"


def test_a_search_that_may_hold_more_reaches_further_up(predictor: SizingPredictor) -> None:
    asked = question(256, "T4")
    (plain,) = predictor.predict(asked)
    (searched,) = predictor.predict(replace(asked, code=replace(asked.code, search_bytes=Bytes(2048 * MIB))))
    assert searched.value == plain.value
    assert searched.high is not None
    assert searched.high >= (searched.value or 0) + 2048 * MIB
