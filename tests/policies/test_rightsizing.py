"""Size recommendations: never below what is known to be needed, never from a doubtful prediction."""

from hypothesis import given
from hypothesis import strategies as st

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.units import GIB, MIB, Bytes
from kopt.policies.rightsizing import RightsizingSettings, recommend

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
