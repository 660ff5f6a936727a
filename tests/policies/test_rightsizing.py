"""Size recommendations: never below what is known to be needed, never from a doubtful prediction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.units import GIB, MIB, Bytes
from kopt.policies.sizing.rightsizing import RightsizingSettings, recommend

MODEL = ModelVersion("sizing", "3")
SETTINGS = RightsizingSettings()
amounts = st.integers(1, 200 * GIB)


def need(low: float, value: float, high: float, **fields: object) -> Prediction:
    known = {"probability": 0.95, "unit": "bytes", "confidence": 0.9, "model": MODEL} | fields
    return Prediction(value, low, high, **known)  # type: ignore[arg-type]


@given(st.lists(amounts, min_size=3, max_size=3).map(sorted), amounts, amounts)
def test_a_recommendation_holds_the_interval_and_every_run_that_was_seen(
    interval: list[int], observed: int, asked: int
) -> None:
    sizing = recommend(Bytes(asked), need(*map(float, interval)), SETTINGS, Bytes(observed))
    assert sizing.recommended_bytes is not None
    assert sizing.recommended_bytes >= max(interval[2], observed)
    assert sizing.recommended_bytes % MIB == 0
    assert sizing.ask_bytes in (None, sizing.recommended_bytes)
    assert sizing.model == MODEL


def test_without_a_good_prediction_everything_stays_as_written() -> None:
    doubtful = [
        None,
        Prediction.refusal(Reason("OUT_OF_DOMAIN", "unknown trainer"), unit="bytes", model=MODEL),
        need(1e9, 2e9, 3e9, confidence=0.5),
        need(1e9, 2e9, 3e9, probability=0.5),
        need(1e9, 2e9, 3e9, fallback=True),
        need(0.0, 0.0, 0.0),
        need(1e9, 2e9, float("inf")),
    ]
    for prediction in doubtful:
        sizing = recommend(Bytes(GIB), prediction, SETTINGS)
        assert (sizing.recommended_bytes, sizing.ask_bytes) == (None, None)
        assert sizing.reasons


def test_whole_gpus_are_never_turned_into_shares() -> None:
    sizing = recommend(Bytes(0), need(1e9, 2e9, 3e9), SETTINGS)
    assert sizing.recommended_bytes is not None
    assert sizing.ask_bytes is None


def test_the_recommendation_is_whole_mebibytes_and_replaces_what_was_asked_for() -> None:
    sizing = recommend(Bytes(40 * GIB), need(1.0 * GIB, 2.0 * GIB, 3.0 * GIB + 1), SETTINGS)
    assert sizing.recommended_bytes == sizing.ask_bytes == 3 * GIB + MIB
    assert sizing.confidence == 0.9
    assert recommend(Bytes(3 * GIB + MIB), need(1e9, 2e9, 3.0 * GIB + 1), SETTINGS).ask_bytes is None, "asks for it"


def test_a_recommendation_says_the_interval_and_the_largest_run_seen() -> None:
    (reason,) = recommend(Bytes(40 * GIB), need(1e9, 2e9, 3e9), SETTINGS, Bytes(5 * GIB)).reasons
    assert reason.code == "PREDICTED_NEED"
    assert reason.numbers == {"low_bytes": 1e9, "high_bytes": 3e9, "observed_peak_bytes": 5 * GIB}
    assert reason.message == "95% of such jobs stay below 2.8 GiB; a run used 5.0 GiB; 40.0 GiB requested."
    (reason,) = recommend(Bytes(0), need(0.0, 2e9, 3e9), SETTINGS).reasons
    assert reason.numbers["low_bytes"] == 0.0
    assert reason.message == "95% of such jobs stay below 2.8 GiB; whole GPUs requested."


@pytest.mark.parametrize(
    ("prediction", "code", "part"),
    [
        (None, "NO_PREDICTION", "Nothing is known"),
        (need(1e9, 2e9, 3e9, fallback=True), "FALLBACK", "did not come from a model"),
        (need(0.0, 0.0, 0.0), "REFUSED", "no usable value"),
        (
            need(1e9, 2e9, 3e9, confidence=0.79),
            "UNSURE",
            "0.79 and probability 0.95 are below 0.80 and 0.90",
        ),
        (need(1e9, 2e9, 3e9, probability=0.89), "UNSURE", "Confidence 0.90 and probability 0.89"),
    ],
)
def test_a_workload_that_stays_as_written_is_told_why(prediction: Prediction | None, code: str, part: str) -> None:
    sizing = recommend(Bytes(GIB), prediction, SETTINGS)
    assert (sizing.recommended_bytes, sizing.ask_bytes, sizing.confidence, sizing.model) == (None, None, 0.0, None)
    (reason,) = sizing.reasons
    assert reason.code == code
    assert part in reason.message
    if code == "UNSURE":
        assert prediction is not None
        assert reason.numbers == {"confidence": prediction.confidence, "probability": prediction.probability}


def test_a_refusal_keeps_the_reason_of_the_predictor() -> None:
    why = Reason("OUT_OF_DOMAIN", "unknown trainer")
    assert recommend(Bytes(GIB), Prediction.refusal(why, unit="bytes", model=MODEL), SETTINGS).reasons == (why,)


def test_a_prediction_that_is_just_sure_enough_counts() -> None:
    sizing = recommend(Bytes(GIB), need(1e9, 2e9, 3e9, confidence=0.8, probability=0.9), SETTINGS)
    assert sizing.recommended_bytes is not None


@pytest.mark.parametrize(("confidence", "probability"), [(0.0, 0.5), (1.0, 0.5), (0.5, 0.01), (0.5, 0.99)])
def test_settings_in_range_are_taken(confidence: float, probability: float) -> None:
    RightsizingSettings(confidence, probability)


@pytest.mark.parametrize(
    ("confidence", "probability"), [(-0.01, 0.5), (1.01, 0.5), (0.5, 0.0), (0.5, 1.0), (0.5, 1.5), (1.5, 1.5)]
)
def test_settings_out_of_range_are_refused(confidence: float, probability: float) -> None:
    with pytest.raises(ValueError, match="out of range"):
        RightsizingSettings(confidence, probability)
