"""What a pod is advised to ask for: never below what is known to be needed, nothing without evidence."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kopt.core.gpu import Vendor
from kopt.core.gpu_catalogue import find_gpu, gpu_catalogue
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.units import GIB, MIB, WHOLE_GPU, Bytes
from kopt.core.workload.executor import Executor
from kopt.core.workload.sizing import Recommendation, RequestedGpus, ShareKind
from kopt.policies.sizing.advice import (
    MEMORY_ANNOTATION,
    NOT_FOLLOWED,
    NOTHING_ADVISED,
    CertaintySettings,
    advise,
    evidence_of,
    fits,
    needed_bytes,
    pod_patch,
)
from kopt.serving.contract.size_advice import SizeAdvice, saved_together

MODEL = ModelVersion("sizing", "3")
CERTAIN = CertaintySettings()
MEMORY_OF = {
    Executor.KAI: "gpu-memory",
    Executor.HAMI: "nvidia.com/gpumem",
    Executor.VOLCANO: "volcano.sh/vgpu-memory",
}
"""Where each executor reads MiB of GPU memory."""
REFUSED = Prediction.refusal(Reason("OUT_OF_DOMAIN", "Unknown trainer."), unit="bytes", model=MODEL)
WHOLE = RequestedGpus(1)


def need(low: float, value: float, high: float, **fields: object) -> Prediction:
    known = {"probability": 0.95, "unit": "bytes", "confidence": 0.9, "model": MODEL} | fields
    return Prediction(value, low, high, **known)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Case:
    """Everything that advice depends on."""

    need: Prediction | None
    requested: RequestedGpus
    gpu: str
    processes: int | None
    activity_high: float | None
    observed: Bytes
    shares: bool
    certainty: CertaintySettings | None
    executor: Executor = Executor.UNKNOWN

    @property
    def advice(self) -> Recommendation:
        return advise(
            self.need,
            self.requested,
            self.gpu,
            self.processes,
            activity_high=self.activity_high,
            observed_peak_bytes=self.observed,
            shares=self.shares,
            certainty=self.certainty,
            executor=self.executor,
        )


amounts = st.integers(1, 400 * GIB) | st.integers(1, 400).map(lambda gib: gib * GIB)
intervals = st.lists(amounts, min_size=3, max_size=3).map(sorted)
known = st.builds(
    lambda interval, confidence, probability, fallback: need(
        *map(float, interval), confidence=confidence, probability=probability, fallback=fallback
    ),
    intervals,
    st.sampled_from([0.0, 0.4, 0.8, 0.95]),
    st.sampled_from([0.5, 0.9, 0.95]),
    st.sampled_from([False, False, False, True]),
)
requests = st.one_of(
    st.builds(RequestedGpus, st.none() | st.integers(0, 16)),
    st.builds(RequestedGpus, st.none() | st.just(1), st.integers(1, 200_000)),
    st.builds(lambda share: RequestedGpus(None, None, share), st.floats(0.001, 1.0)),
)


def cases(needs: st.SearchStrategy[Prediction | None]) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        needs,
        requests,
        st.sampled_from([*gpu_catalogue(), "abacus"]),
        st.none() | st.integers(1, 32),
        st.none() | st.floats(0, 1),
        st.just(Bytes(0)) | amounts.map(Bytes),
        st.booleans(),
        st.none() | st.just(CERTAIN),
        st.sampled_from(Executor),
    )


any_case = st.one_of(cases(st.none() | st.just(REFUSED)), cases(known))
sure_cases = cases(st.lists(st.integers(1, 100 * GIB), min_size=3, max_size=3).map(sorted).map(lambda one: need(*one)))


def as_shown(case: Case) -> SizeAdvice:
    """The advice as the command line and the pages have it."""
    advice, prediction = case.advice, case.need
    figures = (None, None, None)
    if prediction is not None and prediction.value is not None:
        figures = (int(prediction.value), int(prediction.low or 0), int(prediction.high or 0))  # type: ignore[assignment]
    confidence = 0.0 if prediction is None else prediction.confidence
    request = (case.requested.gpus, case.requested.memory_mib, case.requested.fraction)
    share = (advice.kind, advice.bytes, advice.milli_gpu, advice.profile, advice.count)
    names = ("job", "train.py", "image", case.gpu)
    return SizeAdvice(
        *names,
        *request,
        *figures,
        {},
        *share,
        "analytic",
        confidence,
        (advice.reason,),
        0.0,
        advice.gpu,
        advice.executor,
    )


@given(any_case)
def test_without_evidence_or_a_gpu_that_holds_it_there_is_no_advice_patch_or_saving(case: Case) -> None:
    advice, shown = case.advice, as_shown(case)
    assert (advice.kind is ShareKind.NONE) == (advice.reason.code in NOTHING_ADVISED)
    prediction = case.need
    if prediction is None or prediction.refused or prediction.fallback or not prediction.confidence > 0:
        assert advice.kind is ShareKind.NONE
    if advice.kind is not ShareKind.NONE:
        assert shown.why_no_advice == ""
        return
    assert (advice.count, advice.bytes) == (0, 0)
    assert shown.advised == "no advice"
    assert shown.why_no_advice == shown.why_no_patch == advice.reason.message
    assert advice.reason.message.startswith("Nothing is advised, as ")
    assert (shown.patch(), shown.saved_milli_gpu, shown.needed_milli_gpu) == (None, None, None)
    assert pod_patch(advice, case.requested, case.gpu) is None


@given(sure_cases, st.sampled_from(sorted(NOT_FOLLOWED)))
def test_where_it_cannot_be_said_what_pods_run_nothing_is_advised_whatever_is_known(case: Case, code: str) -> None:
    why = Reason(code, "Nothing is advised, as Ray decides.")
    advice = advise(case.need, case.requested, case.gpu, case.processes, executor=case.executor, silent=why)
    assert (advice.kind, advice.count, advice.bytes, advice.reason) == (ShareKind.NONE, 0, 0, why)
    assert pod_patch(advice, case.requested, case.gpu) is None


@given(sure_cases)
@example(Case(need(1.0, 2e9, 3e10), RequestedGpus(None, None, 0.5), "h100", None, None, Bytes(0), True, None))
def test_advice_covers_the_need_and_exceeds_the_request_only_where_that_is_too_small(case: Case) -> None:
    advice, prediction = case.advice, case.need
    if advice.kind is ShareKind.NONE or prediction is None:
        return
    model, wanted = find_gpu(advice.gpu), needed_bytes(prediction, case.observed)
    held = advice.bytes if advice.kind is ShareKind.PARTITION else model.usable_bytes * advice.milli_gpu // WHOLE_GPU
    assert min(advice.bytes, held) >= wanted
    assert wanted >= max(prediction.low or 0, prediction.high or 0, case.observed)
    assert advice.bytes % MIB == 0 or advice.kind is not ShareKind.WHOLE
    asked = case.requested.milli_gpu(find_gpu(case.gpu))
    if asked is None or advice.gpu != find_gpu(case.gpu).name:
        return
    too_small = wanted > case.requested.memory_bytes(model)
    assert advice.total_milli_gpu(model) <= asked or too_small
    if case.requested.memory_mib and not too_small:
        assert advice.bytes <= case.requested.memory_bytes(model)
    if not case.shares and not case.requested.is_share:
        assert advice.kind is ShareKind.WHOLE


@given(sure_cases)
def test_processes_that_are_known_decide_the_count_and_assumed_ones_change_nothing(case: Case) -> None:
    advice, gpus = case.advice, case.requested.gpus or 0
    if advice.kind is ShareKind.NONE or case.requested.is_share:
        return
    assert advice.count <= max(gpus, 1) or not gpus
    if advice.kind is not ShareKind.WHOLE:
        assert (case.processes or max(gpus, 1)) == 1, "what is shared is used by one process"
    if gpus and case.processes is None:
        assert advice.count == gpus, "fewer GPUs only where processes are known"
    elif gpus:
        assert advice.count == min(gpus, case.processes or 0)
    else:
        assert advice.count == (case.processes or 1)


@given(sure_cases)
def test_a_patch_makes_the_pod_ask_for_what_is_advised_and_nothing_more(case: Case) -> None:
    patch, advice, requested = pod_patch(case.advice, case.requested, case.gpu), case.advice, case.requested
    if patch is None:
        return
    memory = patch.get("metadata", {}).get("annotations", {}).get(MEMORY_ANNOTATION)
    limits = patch.get("resources", {}).get("limits", {})
    if case.executor in (Executor.UNKNOWN, Executor.NONE):
        assert memory is None or int(memory) * MIB >= advice.bytes
    is_share = advice.kind is ShareKind.FRACTION or bool(requested.memory_mib)
    assert (memory is not None) == (is_share and advice.executor is not Executor.NONE)
    if advice.kind is ShareKind.WHOLE and not requested.memory_mib:
        assert list(limits.values()) == [str(advice.count)]
    if advice.kind is not ShareKind.PARTITION and limits and requested.gpus:
        assert int(limits.get("nvidia.com/gpu", limits.get("amd.com/gpu")) or 0) <= requested.gpus


@given(sure_cases)
def test_a_share_in_an_executors_terms_covers_the_need_within_the_request(case: Case) -> None:
    advice, prediction, requested = case.advice, case.need, case.requested
    patch = pod_patch(advice, requested, case.gpu)
    if patch is None or prediction is None or advice.kind is not ShareKind.FRACTION or not advice.executor.hands_out:
        return
    limits, notes = patch["resources"]["limits"], patch["metadata"]["annotations"]
    mib = int({**notes, **limits}[MEMORY_OF[advice.executor]])
    model, wanted = find_gpu(case.gpu), needed_bytes(prediction, case.observed)
    assert (model.vendor, advice.executor) == (Vendor.NVIDIA, case.executor)
    assert wanted <= mib * MIB <= model.usable_bytes
    if wanted <= requested.memory_bytes(model):
        assert mib * MIB <= requested.memory_bytes(model)
    assert notes[MEMORY_ANNOTATION] == str(mib)


@given(sure_cases)
def test_without_an_executor_no_share_is_written_or_counted(case: Case) -> None:
    without, anyhow = replace(case, executor=Executor.NONE), replace(case, executor=Executor.UNKNOWN)
    shown, patch = as_shown(without), pod_patch(without.advice, case.requested, case.gpu)
    assert MEMORY_ANNOTATION not in str(patch)
    if anyhow.advice.kind is not ShareKind.FRACTION:
        assert replace(without.advice, executor=Executor.UNKNOWN) == anyhow.advice
        return
    assert "depends on the cluster's executor" in anyhow.advice.reason.message
    if (shown.saved_milli_gpu or 0) > 0:
        # Whole GPUs that no process uses are given back all the same.
        assert (without.advice.kind, without.advice.reason.code) == (ShareKind.WHOLE, "FEWER_GPUS")
    elif without.advice.kind is ShareKind.WHOLE:
        assert without.advice.reason.code == "NO_EXECUTOR"


def test_amds_gpus_are_shared_by_none_of_them() -> None:
    small = need(2.0 * GIB, 3.0 * GIB, 4.0 * GIB)
    assert advise(small, WHOLE, "mi300x", executor=Executor.KAI).reason.code == "NO_EXECUTOR"
    assert advise(small, WHOLE, "h100", executor=Executor.KAI).reason.code == "FITS_FRACTION"


def test_a_fraction_of_kais_is_advised_as_memory() -> None:
    half = RequestedGpus(None, None, 0.5)
    less = advise(need(5.0 * GIB, 6.0 * GIB, 8.0 * GIB), half, "h100", executor=Executor.KAI)
    patch = pod_patch(less, half, "h100")
    assert patch is not None
    notes = patch["metadata"]["annotations"]
    assert (notes["gpu-memory"], notes["gpu-fraction"], notes["kaiwo.ai/gpu-fraction"]) == (str(8 << 10), None, None)


@given(st.lists(st.none() | st.integers(-5000, 5000)))
def test_savings_add_up_to_what_the_rows_say(saved: list[int | None]) -> None:
    assert saved_together(saved) == max(0, sum(each for each in saved if each is not None))


def test_a_share_is_asked_for_only_where_the_size_is_known() -> None:
    small = advise(need(2.0 * GIB, 3.0 * GIB, 4.0 * GIB), RequestedGpus(), "a100-40gb", activity_high=0.1)
    assert (small.kind, small.profile, small.reason.code) == (ShareKind.PARTITION, "1g.5gb", "FITS_PARTITION")
    busy = advise(need(2.0 * GIB, 3.0 * GIB, 4.0 * GIB), RequestedGpus(), "a100-40gb", activity_high=0.9)
    assert (busy.kind, busy.milli_gpu) == (ShareKind.FRACTION, 150)
    assert advise(need(2.0 * GIB, 3.0 * GIB, 30.0 * GIB), WHOLE, "a100-80gb").reason.code == "TOO_UNSURE"
    assert advise(need(2.0 * GIB, 3.0 * GIB, 4.0 * GIB), WHOLE, "a100-80gb", 1, shares=False).reason.code == "WHOLE_GPU"
    two = advise(need(2.0 * GIB, 3.0 * GIB, 4.0 * GIB), RequestedGpus(), "a100-80gb", 2)
    assert (two.count, two.reason.code) == (2, "DISTRIBUTED")
    larger = advise(need(40.0 * GIB, 50.0 * GIB, 60.0 * GIB), WHOLE, "a100-40gb")
    assert (larger.reason.code, fits(60 * GIB)[larger.gpu]) == ("TOO_LARGE", True)
    none = advise(need(800.0 * GIB, 900.0 * GIB, 999.0 * GIB), WHOLE, "h100")
    assert (none.kind, none.count, none.reason.code) == (ShareKind.NONE, 0, "FITS_NONE")


def test_whole_gpus_without_a_process_are_given_back() -> None:
    interval = need(10.0 * GIB, 11.0 * GIB, 12.0 * GIB)
    one = advise(interval, RequestedGpus(4), "h100", 1, shares=False)
    assert (one.count, one.reason.message) == (1, "Its one process has a GPU each; it asks for 4 GPUs.")
    two = advise(interval, RequestedGpus(4), "h100", 2)
    assert (two.count, two.reason.message) == (2, "Its 2 processes have a GPU each; it asks for 4 GPUs.")
    assert pod_patch(two, RequestedGpus(4), "h100") == {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    share = advise(interval, RequestedGpus(4), "mi300x", 1)
    patch = pod_patch(share, RequestedGpus(4), "mi300x")
    assert patch is not None
    assert (set(patch), patch["resources"]) == ({"metadata", "resources"}, {"limits": {"amd.com/gpu": "1"}})


def test_processes_that_have_no_gpu_of_their_own_are_advised_no_less() -> None:
    crowded = advise(need(1e9, 2e9, 3e9), WHOLE, "h100", 8)
    assert (crowded.kind, crowded.count, crowded.reason.code) == (ShareKind.WHOLE, 1, "MORE_PROCESSES")
    assert "starts 8 processes and it asks for 1 GPU" in crowded.reason.message
    share = RequestedGpus(1, 9000)
    assert advise(need(1e9, 2e9, 3e9), share, "h100", 8).bytes == 9000 * MIB


def test_a_pod_that_asks_for_memory_is_advised_exact_memory_or_keeps_its_own() -> None:
    asked = RequestedGpus(None, 9000)
    less = advise(need(5.0 * GIB, 6.0 * GIB, 8.0 * GIB), asked, "a100-80gb")
    assert (less.kind, less.bytes) == (ShareKind.FRACTION, 8 * GIB)
    more = advise(need(5.0 * GIB, 6.0 * GIB, 8.0 * GIB), asked, "a100-80gb", observed_peak_bytes=Bytes(10 * GIB))
    assert more.bytes == 10 * GIB
    distributed = advise(need(5.0 * GIB, 6.0 * GIB, 8.0 * GIB), asked, "a100-80gb", 2)
    assert (distributed.bytes, distributed.reason.code) == (9000 * MIB, "AS_REQUESTED")


def test_a_larger_gpu_is_advised_but_neither_patched_nor_saved() -> None:
    case = Case(need(4e10, 5e10, 6e10), RequestedGpus(4), "A100-SXM4-40GB", 2, None, Bytes(0), True, None)
    shown = as_shown(case)
    assert (shown.count, shown.patch(), shown.saved_milli_gpu, shown.why_no_advice) == (2, None, None, "")
    assert shown.why_no_patch == f"It needs another GPU: {shown.to_gpu}."


def test_what_an_older_endpoint_kept_without_evidence_is_no_advice() -> None:
    case = Case(need(1e9, 2e9, 3e9), RequestedGpus(4), "A100-SXM4-40GB", 2, None, Bytes(0), True, None)
    for without in (replace(as_shown(case), confidence=0.0), replace(as_shown(case), peak_bytes=None)):
        assert (without.advised, without.patch(), without.saved_milli_gpu) == ("no advice", None, None)
        assert without.why_no_advice == "Nothing is advised, as its size is not known."


def test_partitions_of_amd_have_no_name_that_fits_every_node() -> None:
    model = next(gpu for gpu in gpu_catalogue().values() if gpu.vendor is Vendor.AMD and gpu.partitions)
    small = advise(need(1.0, 2.0, 3.0), WHOLE, model.name, activity_high=0.01)
    assert small.kind is ShareKind.PARTITION
    assert pod_patch(small, WHOLE, model.name) is None
    nvidia = advise(need(1.0, 2.0, 3.0), WHOLE, "a100-40gb", activity_high=0.01)
    limits = {"nvidia.com/gpu": None, "nvidia.com/mig-1g.5gb": "1"}
    assert pod_patch(nvidia, WHOLE, "a100-40gb") == {"resources": {"limits": limits}}
    assert pod_patch(nvidia, WHOLE, "h100") is None, "another GPU"


@pytest.mark.parametrize(
    ("prediction", "code", "part"),
    [
        (None, "UNKNOWN_SIZE", "nothing is known about this job type"),
        (REFUSED, "UNKNOWN_SIZE", "Unknown trainer."),
        (need(1e9, 2e9, 3e9, fallback=True), "FALLBACK", "did not come from a model"),
        (need(0.0, 0.0, 0.0), "UNKNOWN_SIZE", "no usable value"),
        (need(1e9, 2e9, float("inf")), "UNKNOWN_SIZE", "no usable value"),
        (need(1e9, 2e9, 3e9, confidence=0.0), "UNSURE", "no confidence"),
        (need(1e9, 2e9, 3e9, confidence=0.79), "UNSURE", "0.79 and probability 0.95 are below 0.80 and 0.90"),
        (need(1e9, 2e9, 3e9, probability=0.89), "UNSURE", "confidence 0.90 and probability 0.89"),
    ],
)
def test_where_nothing_is_advised_a_sentence_says_why(prediction: Prediction | None, code: str, part: str) -> None:
    advice = advise(prediction, WHOLE, "h100", certainty=CERTAIN)
    assert (advice.kind, advice.reason.code) == (ShareKind.NONE, code)
    assert part in advice.reason.message
    if code == "UNSURE":
        assert prediction is not None
        assert advice.reason.numbers == {"confidence": prediction.confidence, "probability": prediction.probability}


def test_a_prediction_that_is_just_sure_enough_counts() -> None:
    sure = need(1e9, 2e9, 3e9, confidence=0.8, probability=0.9)
    assert advise(sure, WHOLE, "h100", certainty=CERTAIN).kind is not ShareKind.NONE
    unsure = replace(sure, confidence=0.1, probability=0.5)
    assert advise(unsure, WHOLE, "h100").kind is not ShareKind.NONE, "nobody acts on it"


def test_evidence_says_the_interval_and_the_largest_run_seen() -> None:
    reason = evidence_of(need(1e9, 2e9, 3e9), RequestedGpus(None, 40 << 10), Bytes(5 * GIB))
    assert reason.code == "PREDICTED_NEED"
    assert reason.numbers == {"low_bytes": 1e9, "high_bytes": 3e9, "observed_peak_bytes": 5 * GIB}
    assert reason.message == "95% of such jobs stay below 2.8 GiB; a run used 5.0 GiB; 40.0 GiB requested."
    reason = evidence_of(need(0.0, 2e9, 3e9), WHOLE)
    assert reason.numbers["low_bytes"] == 0.0
    assert reason.message == "95% of such jobs stay below 2.8 GiB; whole GPUs requested."


@pytest.mark.parametrize(("confidence", "probability"), [(0.0, 0.5), (1.0, 0.5), (0.5, 0.01), (0.5, 0.99)])
def test_settings_in_range_are_taken(confidence: float, probability: float) -> None:
    CertaintySettings(confidence, probability)


@pytest.mark.parametrize(
    ("confidence", "probability"), [(-0.01, 0.5), (1.01, 0.5), (0.5, 0.0), (0.5, 1.0), (0.5, 1.5), (1.5, 1.5)]
)
def test_settings_out_of_range_are_refused(confidence: float, probability: float) -> None:
    with pytest.raises(ValueError, match="out of range"):
        CertaintySettings(confidence, probability)
