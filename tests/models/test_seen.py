"""A series the model was trained on is known again: renamed, cut, or grown; others are not."""

from dataclasses import replace

import numpy as np
import pytest

from kopt.data.demand.generator import generate
from kopt.data.demand.table import DemandSeries
from kopt.models.demand.training_overlap import fingerprint, trained_until
from kopt.models.registry.artifact import ModelCard


@pytest.fixture(scope="module")
def service() -> DemandSeries:
    return generate(services=1, days=6, seed=11)[0]


def _card(*series: DemandSeries) -> ModelCard:
    return ModelCard("demand", training_data=tuple(fingerprint(one) for one in series))


def test_the_same_series_is_seen_to_its_end(service: DemandSeries) -> None:
    assert trained_until(_card(service), service) == len(service)


def test_another_series_is_not_seen(service: DemandSeries) -> None:
    other = generate(services=1, days=6, seed=12)[0]
    assert other.name == service.name
    assert trained_until(_card(service), other) == 0


def test_a_renamed_series_is_seen(service: DemandSeries) -> None:
    assert trained_until(_card(service), replace(service, name="renamed")) == len(service)


def test_of_a_series_that_has_grown_only_the_new_part_is_unseen(service: DemandSeries) -> None:
    half_a_day = 144
    early = service.upto(4 * 288 + half_a_day - 1)
    assert trained_until(_card(early), service) == len(early)
    assert trained_until(_card(early), replace(service, name="renamed")) == 4 * 288


def test_a_later_window_of_a_series_is_seen_up_to_where_training_ended(service: DemandSeries) -> None:
    window = service.tail(4 * 288 + 100)
    trained = _card(service.upto(5 * 288 - 1))
    assert trained_until(trained, window) == len(window) - 288


def test_idle_days_prove_nothing() -> None:
    idle = DemandSeries("idle", 0.0, 300, np.zeros(5 * 288))
    busy = DemandSeries("busy", 0.0, 300, np.concatenate([np.zeros(4 * 288), np.arange(288.0)]))
    assert fingerprint(idle).days == ()
    assert trained_until(_card(idle), busy) == 0
    assert trained_until(_card(idle), idle) == len(idle)


def test_finer_series_are_known_on_the_grid() -> None:
    minutes = DemandSeries("m", 0.0, 60, np.random.default_rng(0).uniform(1, 9, 3 * 1440))
    assert trained_until(_card(minutes), minutes.resampled()) == 3 * 288
