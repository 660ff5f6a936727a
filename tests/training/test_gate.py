"""The gate lets better models through, and names what is worse about the others."""

from dataclasses import replace

import numpy as np
import pytest

from kopt.data.demand.generator import generate
from kopt.data.demand.rolling import Forecasts
from kopt.data.demand.table import DemandSeries
from kopt.features.demand import HORIZONS_S, fill_gaps
from kopt.training.demand.evaluate import Score, score, scored_origins
from kopt.training.demand.gate import evaluate_gate
from kopt.training.pipeline.protocols import GateDecision, GateRules

RULES = GateRules(resamples=400)


def _scores(
    services: list[DemandSeries],
    blend: float,
    *,
    seed: int = 0,
    width: float = 1.5,
    noise: float = 0.02,
    worse_on: str = "",
) -> list[Score]:
    """Forecasts that know ``blend`` of the coming change, with a little noise of their own."""
    rng, found = np.random.default_rng(seed), []
    for series in services:
        origins, filled = scored_origins(series, HORIZONS_S), fill_gaps(series.value)
        last = filled[origins][:, None]
        ahead = np.minimum(origins[:, None] + np.array([h // series.step_s for h in HORIZONS_S]), len(filled) - 1)
        known = blend if series.name != worse_on else blend - 0.4
        middle = last + known * (filled[ahead] - last)
        middle = np.maximum(middle * np.exp(rng.normal(0, noise, middle.shape)), 0)
        value = middle[:, :, None] * np.array([1.0, 0.5 + width / 2, width, width * 1.3])
        forecasts = Forecasts(series.name, origins, HORIZONS_S, (0.5, 0.9, 0.95, 0.99), value)
        found += score(series, forecasts, slices=(f"group {series.name}",))
    return found


@pytest.fixture(scope="module")
def services() -> list[DemandSeries]:
    return generate(services=6, days=8, seed=2)


def _codes(verdict: GateDecision) -> set[str]:
    return {reason.code for reason in verdict.reasons}


def test_a_better_challenger_passes(services: list[DemandSeries]) -> None:
    verdict = evaluate_gate(_scores(services, 0.0), _scores(services, 0.4, seed=1), RULES)
    assert verdict.passed
    assert _codes(verdict) == {"BETTER"}
    assert verdict.reasons[0].numbers["accuracy"] > 0.1  # type: ignore[operator]


def test_a_worse_challenger_is_refused_with_slice_and_amount(services: list[DemandSeries]) -> None:
    verdict = evaluate_gate(_scores(services, 0.4), _scores(services, 0.0, seed=1), RULES)
    assert not verdict.passed
    assert "WORSE_ACCURACY" in _codes(verdict)
    found = {(r.numbers["slice"], r.numbers["horizon_s"], r.numbers["metric"]) for r in verdict.reasons}
    assert ("all", 3600, "accuracy") in found
    assert "of the oracle's GPU-time less at 1 % violation" in verdict.reasons[0].message
    assert verdict.summary.endswith(f"And {len(verdict.reasons) - 3} more.")


def test_noise_decides_nothing(services: list[DemandSeries]) -> None:
    """Equal models with different noise: over many draws hardly any passes, and hardly any is called worse."""
    verdicts = [
        evaluate_gate(
            _scores(services, 0.2, seed=2 * i, noise=0.3), _scores(services, 0.2, seed=2 * i + 1, noise=0.3), RULES
        )
        for i in range(8)
    ]
    assert sum(v.passed for v in verdicts) <= 1
    assert sum(_codes(v) != {"NO_BETTER"} for v in verdicts if not v.passed) <= 1


def test_one_spoilt_service_is_named(services: list[DemandSeries]) -> None:
    victim = services[2].name
    verdict = evaluate_gate(_scores(services, 0.2), _scores(services, 0.4, seed=1, worse_on=victim), RULES)
    better = evaluate_gate(_scores(services, 0.2), _scores(services, 0.4, seed=1), RULES)
    assert better.passed
    assert not verdict.passed or victim not in verdict.summary
    spoilt = evaluate_gate(_scores(services, 0.4), _scores(services, 0.5, seed=1, worse_on=victim), RULES)
    assert not spoilt.passed
    assert {reason.numbers["slice"] for reason in spoilt.reasons} == {f"group {victim}"}


def test_a_challenger_that_gives_less_safe_quantiles_is_refused(services: list[DemandSeries]) -> None:
    verdict = evaluate_gate(_scores(services, 0.2, width=2.0), _scores(services, 0.4, width=1.0, seed=1), RULES)
    assert not verdict.passed
    assert "WORSE_SAFETY" in _codes(verdict)


def test_too_little_shared_data_is_a_refusal_that_says_how_much(services: list[DemandSeries]) -> None:
    assert _codes(evaluate_gate([], [], RULES)) == {"TOO_LITTLE_DATA"}
    strangers = [replace(s, series="other") for s in _scores(services[:1], 0.2)]
    assert _codes(evaluate_gate(strangers, _scores(services[:1], 0.9), RULES)) == {"TOO_LITTLE_DATA"}
    verdict = evaluate_gate(_scores(services, 0.0), _scores(services, 0.9), replace(RULES, minimum_days=99))
    assert not verdict.passed
    assert "needs 200 over 99" in verdict.summary


def test_scores_over_different_rows_are_an_error(services: list[DemandSeries]) -> None:
    scores = _scores(services[:1], 0.2)
    other = [replace(s, rows=s.rows + 1) for s in scores]
    with pytest.raises(ValueError, match="different rows"):
        evaluate_gate(scores, other, RULES)


def test_the_verdict_is_a_function_of_its_arguments(services: list[DemandSeries]) -> None:
    champion, challenger = _scores(services, 0.1), _scores(services, 0.2, seed=1)
    assert evaluate_gate(champion, challenger, RULES) == evaluate_gate(list(champion), list(challenger), RULES)
