"""When forecasts are requested again: in the interval, and as soon as a bucket may have come."""

import pytest

from kopt.controllers.lending.forecasts import Forecast, Forecasts, Known
from kopt.core.prediction import ModelVersion

END_S = 1_764_104_400.0
"""Of a bucket."""


def due_s(after_end_s: float, data_at_s: float | None, refresh_s: float = 60.0) -> float:
    now_s = END_S + after_end_s
    forecasts = Forecasts(None, lambda: None, 300.0, clock=lambda: now_s)
    forecasts._known["pool"] = Known(now_s, {"ml/chat": Forecast({}, ModelVersion("demand", "1", ""), data_at_s)})
    return forecasts.due_s(refresh_s)


@pytest.mark.parametrize(
    ("after_end_s", "data_at_s", "expected_s"),
    [
        (100, END_S, 60),
        (280, END_S, 23),
        (0, END_S - 300, 3),
        (5, END_S - 300, 3),
        (5, END_S, 60),
        (40, END_S - 300, 60),
        (5, None, 60),
        (5, 12.0, 60),
    ],
    ids=[
        "the interval",
        "before the end of a bucket: until it can be there",
        "at its end",
        "it is not there yet",
        "it is there",
        "it does not come",
        "a model that does not say what it rests on",
        "a recording, not the clock's time",
    ],
)
def test_forecasts_are_requested_when_a_bucket_may_have_come(
    after_end_s: float, data_at_s: float | None, expected_s: float
) -> None:
    assert due_s(after_end_s, data_at_s) == pytest.approx(expected_s)
    assert due_s(after_end_s, data_at_s, refresh_s=1.0) == 1.0
