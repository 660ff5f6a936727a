"""Each way that advice on sizes ends: the whole recommendation, its reason and the numbers in it."""

import math
from typing import Any

import pytest

from kopt.core.gpu_catalogue import find_gpu
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.units import GIB, MIB, Bytes
from kopt.core.workload.executor import Executor
from kopt.core.workload.sizing import Recommendation, RequestedGpus, ShareKind
from kopt.policies.sizing.advice import CertaintySettings, advise, doubt, evidence_of, fits, needed_bytes, pod_patch

GPU = "A100-SXM4-40GB"
USABLE = int(find_gpu(GPU).usable_bytes)
MIBS = USABLE // MIB
MODEL = ModelVersion("sizing", "3")
NONE = Executor.NONE


def need(low: float, value: float | None, high: float | None, **fields: Any) -> Prediction:
    known = {"probability": 0.95, "unit": "bytes", "confidence": 0.9, "model": MODEL} | fields
    return Prediction(value, low, high, **known)


def gib(amount: float) -> int:
    return int(amount * GIB)


def up(amount: float) -> int:
    """GiB in bytes, in whole MiB."""
    return -(-gib(amount) // MIB) * MIB


SURE = need(gib(8), gib(9), gib(10))
HALF = need(gib(18), gib(19), gib(20))
MOST = need(gib(35), gib(36), gib(37))
WIDE = need(gib(1), gib(4), gib(10) + 1)
HUGE = need(gib(50), gib(55), gib(60))


def of(
    kind: ShareKind,
    amount: int,
    code: str,
    numbers: dict[str, Any],
    *,
    milli: int = 1000,
    gpu: str = GPU,
    **fields: Any,
) -> tuple[Any, ...]:
    """Kind, bytes, GPU, milli-GPU, count, profile, the reason's code and numbers."""
    if kind is ShareKind.NONE:
        return kind, amount, gpu, 0, 0, "", code, numbers
    return kind, amount, gpu, milli, fields.get("count", 1), fields.get("profile", ""), code, numbers


WHOLE, FRACTION, NOTHING = ShareKind.WHOLE, ShareKind.FRACTION, ShareKind.NONE
ONE, TWO = RequestedGpus(1), RequestedGpus(2)
IN_MIB, IN_SHARES = RequestedGpus(1, 16 << 10), RequestedGpus(None, None, 0.5)
CASES = {
    "an unknown GPU": (
        {"need": SURE, "requested": ONE, "gpu": "abacus"},
        of(NOTHING, 0, "UNKNOWN_GPU", {}, gpu="abacus"),
    ),
    "nothing known": ({"need": None, "requested": ONE}, of(NOTHING, 0, "UNKNOWN_SIZE", {})),
    "more than any GPU": (
        {"need": need(gib(500), gib(900), gib(1000)), "requested": ONE},
        of(NOTHING, 0, "FITS_NONE", {"bytes": gib(1000), "usable_bytes": USABLE}),
    ),
    "a larger GPU": (
        {"need": HUGE, "requested": TWO},
        of(WHOLE, gib(60), "TOO_LARGE", {"bytes": gib(60), "usable_bytes": USABLE}, gpu="H100-SXM5-80GB", count=2),
    ),
    "all but a MiB of a GPU": (
        {"need": need(1.0, USABLE - MIB - 1.0, float(USABLE - MIB)), "requested": ONE, "shares": False},
        of(WHOLE, MIBS * MIB, "WHOLE_GPU", {"bytes": MIBS * MIB, "count": 1, "requested_gpus": 1, "processes": 1}),
    ),
    "no shares": (
        {"need": SURE, "requested": RequestedGpus(), "shares": False},
        of(WHOLE, gib(10), "WHOLE_GPU", {"bytes": gib(10), "count": 1, "requested_gpus": 0, "processes": 1}),
    ),
    "more processes than GPUs": (
        {"need": SURE, "requested": TWO, "processes": 4},
        of(
            WHOLE,
            gib(10),
            "MORE_PROCESSES",
            {"bytes": gib(10), "count": 2, "requested_gpus": 2, "processes": 4},
            count=2,
        ),
    ),
    "fewer processes than GPUs": (
        {"need": SURE, "requested": RequestedGpus(8), "processes": 3},
        of(WHOLE, gib(10), "FEWER_GPUS", {"bytes": gib(10), "count": 3, "requested_gpus": 8, "processes": 3}, count=3),
    ),
    "as many": (
        {"need": SURE, "requested": TWO},
        of(WHOLE, gib(10), "DISTRIBUTED", {"bytes": gib(10), "count": 2, "requested_gpus": 2, "processes": 2}, count=2),
    ),
    "too wide": (
        {"need": WIDE, "requested": ONE},
        of(WHOLE, gib(10) + MIB, "TOO_UNSURE", {"high_bytes": gib(10) + 1, "peak_bytes": gib(4)}),
    ),
    "just not too wide": (
        {"need": need(gib(1), gib(4), gib(10)), "requested": ONE, "executor": Executor.KAI},
        of(FRACTION, gib(10), "FITS_FRACTION", {"bytes": gib(10), "milli_gpu": 300}, milli=300),
    ),
    "a share": (
        {"need": SURE, "requested": ONE, "executor": Executor.KAI},
        of(FRACTION, gib(10), "FITS_FRACTION", {"bytes": gib(10), "milli_gpu": 300}, milli=300),
    ),
    "a share, perhaps": (
        {"need": SURE, "requested": ONE},
        of(FRACTION, gib(10), "FITS_FRACTION", {"bytes": gib(10), "milli_gpu": 300, "executor": "unknown"}, milli=300),
    ),
    "a partition": (
        {"need": SURE, "requested": ONE, "activity_high": 0.2},
        of(
            ShareKind.PARTITION,
            gib(19.5),
            "FITS_PARTITION",
            {"bytes": gib(10), "compute_units": 42},
            profile="3g.20gb",
        ),
    ),
    "most of a GPU": (
        {"need": MOST, "requested": ONE, "executor": Executor.KAI},
        of(WHOLE, gib(37), "NEEDS_MOST_OF_IT", {"bytes": gib(37)}),
    ),
    "a share that nobody hands out": (
        {"need": SURE, "requested": ONE, "executor": NONE},
        of(WHOLE, gib(10), "NO_EXECUTOR", {"bytes": gib(10), "milli_gpu": 300}),
    ),
    "a share that nobody hands out, of several GPUs": (
        {"need": SURE, "requested": TWO, "processes": 1, "executor": NONE},
        of(WHOLE, gib(10), "FEWER_GPUS", {"bytes": gib(10), "count": 1, "requested_gpus": 2, "processes": 1}),
    ),
    "a smaller share in MiB": (
        {"need": SURE, "requested": IN_MIB, "executor": Executor.HAMI},
        of(FRACTION, gib(10), "FITS_FRACTION", {"bytes": gib(10), "milli_gpu": 254}, milli=254),
    ),
    "a share that is kept": (
        {"need": need(gib(14), gib(15), gib(15.9)), "requested": IN_SHARES, "executor": Executor.KAI},
        of(FRACTION, up(15.9), "FITS_FRACTION", {"bytes": up(15.9), "milli_gpu": 450}, milli=450),
    ),
    "a share that is too small": (
        {"need": HALF, "requested": RequestedGpus(1, 8 << 10), "executor": NONE},
        of(FRACTION, gib(20), "FITS_FRACTION", {"bytes": gib(20), "milli_gpu": 508}, milli=508),
    ),
    "a share of several processes": (
        {"need": SURE, "requested": IN_MIB, "processes": 2, "executor": Executor.KAI},
        of(FRACTION, gib(16), "AS_REQUESTED", {"bytes": gib(10), "requested_bytes": gib(16)}, milli=407),
    ),
    "a share that is asked for without an executor": (
        {"need": SURE, "requested": IN_MIB, "executor": NONE},
        of(FRACTION, gib(16), "NO_EXECUTOR", {"bytes": gib(10), "milli_gpu": 254}, milli=407),
    ),
}


def outcome(advice: Recommendation) -> tuple[Any, ...]:
    reason = advice.reason
    assert isinstance(reason, Reason)
    assert reason.message
    kind = (advice.kind, int(advice.bytes), advice.gpu, int(advice.milli_gpu), advice.count, advice.profile)
    return *kind, reason.code, dict(reason.numbers)


@pytest.mark.parametrize("name", CASES)
def test_advice_is_what_the_situation_asks_for(name: str) -> None:
    given, expected = CASES[name]
    advice = advise(**({"gpu": GPU} | given))  # type: ignore[arg-type]
    assert outcome(advice) == expected


def test_evidence_states_the_interval_the_largest_run_and_the_request() -> None:
    reason = evidence_of(SURE, IN_MIB, Bytes(gib(9.5)))
    assert reason.code == "PREDICTED_NEED"
    assert dict(reason.numbers) == {"low_bytes": gib(8), "high_bytes": gib(10), "observed_peak_bytes": gib(9.5)}
    assert reason.message == "95% of such jobs stay below 10.0 GiB; a run used 9.5 GiB; 16.0 GiB requested."
    assert evidence_of(SURE, ONE).message == "95% of such jobs stay below 10.0 GiB; whole GPUs requested."


def test_what_is_needed_covers_the_interval_and_every_run() -> None:
    assert needed_bytes(need(1, 2, 3 * MIB + 1)) == 4 * MIB
    assert needed_bytes(SURE, Bytes(gib(11))) == gib(11)
    assert needed_bytes(need(0, 0.5, 0.9), Bytes(0)) == MIB


def test_a_gpu_is_full_at_its_usable_memory() -> None:
    usable = find_gpu(GPU).usable_bytes
    assert fits(float(usable))[GPU]
    assert not fits(math.nextafter(float(usable), math.inf))[GPU]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"high": 0.0, "value": 0.0, "low": 0.0}, "UNKNOWN_SIZE"),
        ({"high": math.inf}, "UNKNOWN_SIZE"),
        ({"fallback": True}, "FALLBACK"),
        ({"confidence": 0.0}, "UNSURE"),
    ],
)
def test_a_prediction_that_says_nothing_is_no_evidence(changed: dict[str, Any], code: str) -> None:
    given = {"low": 1.0, "value": 2.0, "high": 3.0} | changed
    reason = doubt(need(given.pop("low"), given.pop("value"), given.pop("high"), **given))
    assert reason is not None
    assert (reason.code, bool(reason.message)) == (code, True)
    if code == "UNSURE":
        assert dict(reason.numbers) == {"confidence": 0.0, "probability": 0.95}


@pytest.mark.parametrize(
    ("confidence", "probability", "met"), [(0.8, 0.9, True), (0.79, 0.9, False), (0.8, 0.89, False)]
)
def test_what_is_acted_upon_is_certain_enough(confidence: float, probability: float, met: bool) -> None:
    unsure = doubt(need(1.0, 2.0, 3.0, confidence=confidence, probability=probability), CertaintySettings())
    assert (unsure is None) is met
    if unsure is not None:
        assert dict(unsure.numbers) == {"confidence": confidence, "probability": probability}


def test_a_patch_asks_for_fewer_gpus_and_else_only_for_the_memory() -> None:
    requested = RequestedGpus(2, 20 << 10)
    advice = Recommendation(WHOLE, Bytes(gib(10)), GPU, count=1)
    both = pod_patch(advice, requested, GPU)
    assert both == {
        "metadata": {"annotations": {"kaiwo.ai/gpu-memory": "10240"}},
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    same = pod_patch(advice, RequestedGpus(1, 20 << 10), GPU)
    assert same == {"metadata": {"annotations": {"kaiwo.ai/gpu-memory": "10240"}}}
    assert pod_patch(advice, RequestedGpus(), GPU) == {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
