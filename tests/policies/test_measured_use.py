"""How measured use of GPUs counts beside an estimate."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.gpu_catalogue import find_gpu
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.units import GIB, Bytes
from kopt.core.workload.measured import MeasuredUse, together
from kopt.core.workload.sizing import Recommendation, RequestedGpus, ShareKind
from kopt.policies.sizing.advice import advise
from kopt.policies.sizing.measured import ENOUGH_S, MARGIN, Evidence, weigh

H100 = find_gpu("h100")
MODEL = ModelVersion("sizing", "test")
WHOLE = RequestedGpus(gpus=1)
WEEK_S = 7 * ENOUGH_S


def estimate(low: float, value: float, high: float, confidence: float = 0.9) -> Prediction:
    return Prediction(low=low * GIB, value=value * GIB, high=high * GIB, probability=0.9, unit="bytes", model=MODEL,
                      confidence=confidence)  # fmt: skip


REFUSED = Prediction.refusal(Reason("UNKNOWN_TYPE", "never seen."), unit="bytes", model=MODEL)


def use(gib: float, measured_s: float = WEEK_S, pods: int = 1) -> MeasuredUse:
    return MeasuredUse(Bytes(int(gib * GIB)), measured_s, pods)


def weighed(
    need: Prediction | None, measured: MeasuredUse, requested: RequestedGpus = WHOLE, pods: int = 1
) -> tuple[Evidence, Recommendation]:
    evidence = weigh(need, measured, requested, H100.usable_bytes, pods)
    return evidence, advise(evidence.need, requested, H100.name)


def test_a_week_takes_the_place_of_an_estimate_that_is_too_high_and_of_one_too_low() -> None:
    for need in (estimate(20, 30, 50), estimate(1, 2, 3), REFUSED, None, estimate(1, 2, 3, confidence=0.0)):
        evidence, advice = weighed(need, use(10))
        assert evidence.is_measured
        assert advice.kind is ShareKind.FRACTION
        assert advice.bytes == pytest.approx(10 * (1 + MARGIN) * GIB, rel=1e-3)
        assert "10.0 GiB of a GPU in 7 days" in evidence.reason.message


def test_hours_raise_an_estimate_and_never_lower_it() -> None:
    _, advice = weighed(estimate(20, 30, 40), use(10, 3600.0))
    assert advice.bytes == 40 * GIB
    evidence, advice = weighed(estimate(1, 2, 3), use(10, 3600.0))
    assert advice.bytes == pytest.approx(10 * (1 + MARGIN) * GIB, rel=1e-3)
    assert (evidence.is_measured, evidence.reason.code) == (False, "MEASURED_SHORT")
    assert "for 60 min only, where 24 h are needed" in evidence.reason.message


def test_hours_alone_are_no_advice() -> None:
    for need in (REFUSED, None, estimate(1, 2, 3, confidence=0.0)):
        evidence, advice = weighed(need, use(10, 3 * 3600.0))
        assert advice.kind is ShareKind.NONE
        assert "3 h only" in advice.reason.message
        assert evidence.reason.code == "MEASURED_SHORT"


def test_some_of_the_pods_are_not_all() -> None:
    evidence, advice = weighed(estimate(20, 30, 40), use(10, pods=2), pods=8)
    assert advice.bytes == 40 * GIB
    assert "2 of 8 pods" in evidence.reason.message


def test_a_partition_advises_nothing_whatever_is_estimated() -> None:
    evidence, advice = weighed(estimate(1, 2, 3), replace(use(5), partition=True))
    assert advice.kind is ShareKind.NONE
    assert "MIG" in advice.reason.message
    assert evidence.reason.code == "MEASURED_PARTITION"


@pytest.mark.parametrize(
    ("measured", "requested"),
    [(replace(use(70), shared=True), WHOLE), (use(70), RequestedGpus(memory_mib=20 << 10))],
)
def test_memory_of_a_shared_gpu_is_not_that_of_the_pod(measured: MeasuredUse, requested: RequestedGpus) -> None:
    need = estimate(5, 6, 8)
    assert weighed(need, measured, requested)[1] == advise(need, requested, H100.name)
    assert weighed(REFUSED, measured, requested)[1].kind is ShareKind.NONE


def test_more_than_the_gpu_holds_was_another_gpu() -> None:
    evidence, advice = weighed(estimate(5, 6, 8), use(120))
    assert (evidence.reason.code, advice.kind) == ("MEASURED_OTHER_GPU", ShareKind.NONE)


def test_a_gpu_that_is_full_stays_whole() -> None:
    advice = weighed(REFUSED, use(H100.usable_bytes / GIB - 0.5))[1]
    assert (advice.kind, advice.count, advice.gpu) == (ShareKind.WHOLE, 1, H100.name)


NEEDS: st.SearchStrategy[Prediction | None] = st.none() | st.just(REFUSED) | st.builds(
    lambda ends, confidence: estimate(*sorted(ends), confidence),
    st.lists(st.floats(0.01, 300), min_size=3, max_size=3),
    st.floats(0, 1),
)  # fmt: skip
USES = st.builds(
    MeasuredUse,
    st.integers(1, 200 * GIB).map(Bytes),
    st.floats(0, 30 * ENOUGH_S),
    st.integers(1, 4),
    partition=st.booleans(),
    shared=st.booleans(),
)


@given(NEEDS, USES, st.integers(1, 8), st.integers(1, 4), st.none() | st.floats(0, 1))
def test_advice_is_never_below_the_peak_nor_above_what_is_asked_for(
    need: Prediction | None, measured: MeasuredUse, gpus: int, pods: int, activity: float | None
) -> None:
    requested = RequestedGpus(gpus=gpus)
    evidence = weigh(need, measured, requested, H100.usable_bytes, pods)
    advice = advise(evidence.need, requested, H100.name, activity_high=activity)
    if advice.kind is ShareKind.NONE:
        return
    if not measured.shared:
        assert advice.bytes >= measured.peak_bytes
    if evidence.is_measured:
        assert advice.gpu == H100.name
        assert advice.total_milli_gpu(H100) <= 1000 * gpus


@pytest.mark.parametrize("change", [lambda use: replace(use, partition=True), lambda use: replace(use, shared=True)])
def test_one_pod_on_a_part_of_a_gpu_counts_for_all(change: Callable[[MeasuredUse], MeasuredUse]) -> None:
    both = together([use(10, 60.0), change(replace(use(12, 90.0), activity=0.5, activity_high=0.75, jobs=("b", "a")))])
    assert both is not None
    assert (both.peak_bytes, both.measured_s, both.pods) == (12 * GIB, 90.0, 2)
    assert both.partition or both.shared
    assert (both.activity, both.activity_high, both.jobs) == (0.5, 0.75, ("a", "b"))
    assert together([]) is None
