"""The advice is the best of everything that is likely to fit, and the curve says where it stops paying."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kopt
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.workload.language_models import UnknownModelError, find_language_model
from kopt.core.workload.split import CurvePoint, Framework, SplitAdvice, SplitEstimate, TrainingJob
from kopt.core.workload.training_plan import PlanError
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.models.parallelism.advice import Advisor, fit_probability
from kopt.models.parallelism.efficiency import shipped_efficiency
from kopt.models.parallelism.scaling import scaling_curve, useful_gpus
from kopt.models.registry.loading import SHIPPED
from kopt.models.sizing.estimate import load_sizing

_ADVISOR = Advisor(load_bandwidth(SHIPPED), load_sizing(SHIPPED), shipped_efficiency())


def _job(**changes: Any) -> TrainingJob:
    job = TrainingJob(find_language_model("Llama-3-8B"), "H100-SXM5-80GB", 8, 8, 4096, 64)
    return replace(job, **changes)


def _codes(advice: SplitAdvice) -> list[str]:
    return [reason.code for reason in advice.reasons]


@pytest.mark.parametrize("framework", list(Framework))
def test_the_first_is_the_best_of_all_that_are_likely_to_fit(framework: Framework) -> None:
    """Against every candidate sized one by one."""
    job = _job(framework=framework)
    advice = _ADVISOR.advise(job, count=3, likely=0.9)
    sized = [
        (candidate.seconds / probability, candidate.split)
        for candidate, _, probability in _ADVISOR._sized(job, _ADVISOR._candidates(job))
        if probability >= 0.9
    ]
    assert min(sized, key=lambda each: each[0])[1] == advice.splits[0].split
    rated = [each.step_seconds / each.fit_probability for each in advice.splits]
    assert rated == sorted(rated)
    assert all(each.fit_probability >= 0.9 for each in advice.splits)


def test_answers_hold_together() -> None:
    advice = _ADVISOR.advise(_job(price=2.0))
    for each in advice.splits:
        assert sum(each.parts.values()) == pytest.approx(each.step_seconds, rel=1e-6)
        assert each.step_low_seconds < each.step_seconds < each.step_high_seconds
        assert each.memory_low_bytes <= each.memory_bytes <= each.memory_high_bytes
        assert each.memory_bytes < find_gpu("H100").usable_bytes
        assert 0 < each.flops_share < 1
        hours = 8 * each.step_seconds / 3600 / (64 * 4096) * 1e9
        assert each.gpu_hours_per_billion_tokens == pytest.approx(hours)
        assert each.money_per_billion_tokens == pytest.approx(2 * hours)
    assert advice.to_dict()["splits"][0]["settings"]["megatron"]["text"].startswith("--num-layers 32")


def test_what_fits_nowhere_is_said_and_nothing_advised() -> None:
    advice = _ADVISOR.advise(_job(model=find_language_model("Llama-3.1-405B")))
    assert advice.splits == ()
    assert _codes(advice)[0] == "NO_SPLIT_FITS"
    assert "0%" in advice.reasons[0].message


def test_more_memory_and_less_certainty_never_make_it_slower() -> None:
    small = _ADVISOR.advise(_job(gpu="H100-SXM5-80GB"), count=1).splits[0]
    large = _ADVISOR.advise(_job(gpu="H200-SXM5-141GB"), count=1).splits[0]
    assert large.step_seconds <= small.step_seconds * 1.001
    rash = _ADVISOR.advise(_job(), count=1, likely=0.3).splits[0]
    assert rash.step_seconds <= small.step_seconds * 1.001


def test_an_unknown_network_is_assumed_and_said() -> None:
    several = _job(gpus=16)
    assert "NETWORK_ASSUMED" in _codes(_ADVISOR.advise(several))
    named = _ADVISOR.advise(replace(several, network="8x NDR400 IB"))
    assert "NETWORK_ASSUMED" not in _codes(named)
    assert "NETWORK_ASSUMED" not in _codes(_ADVISOR.advise(_job()))
    slow = _ADVISOR.advise(replace(several, network="10GbE"))
    assert slow.splits[0].step_seconds > named.splits[0].step_seconds


def test_gpus_that_nobody_measured_are_said_to_be_so_and_have_wider_intervals() -> None:
    known, other = (_ADVISOR.advise(_job(gpu=gpu), count=1) for gpu in ("H100-SXM5-80GB", "MI300X"))
    assert "UNMEASURED_GPU" not in _codes(known)
    assert "UNMEASURED_GPU" in _codes(other)
    widths = [each.splits[0].step_high_seconds / each.splits[0].step_seconds for each in (known, other)]
    assert widths[1] > 1.1 * widths[0]
    curve = scaling_curve(_ADVISOR, _job(gpu="MI300X"), [8], measured={8: 30.0})
    assert curve.points[0].best.step_high_seconds / 30.0 < widths[0]


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(PlanError, match="no split of 7 GPUs"):
        _ADVISOR.advise(_job(gpus=7, global_batch=64))
    with pytest.raises(UnknownGpuError):
        _ADVISOR.advise(_job(gpu="Z9000"))


@given(st.floats(1e9, 1e11), st.floats(1.001, 4.0), st.floats(1.001, 4.0))
def test_the_probability_to_fit_is_that_of_the_interval(value: float, below: float, above: float) -> None:
    version = ModelVersion("sizing", "1")
    memory = Prediction(value, value / below, value * above, 0.95, "bytes", 0.9, version)
    assert fit_probability(memory, value) == pytest.approx(0.5)
    assert fit_probability(memory, memory.high or 0) == pytest.approx(0.98, abs=2e-3)
    assert fit_probability(memory, memory.low or 0) == pytest.approx(0.03, abs=2e-3)


def _points(*throughputs: tuple[int, float]) -> list[CurvePoint]:
    estimate = _ADVISOR.advise(_job(), count=1).splits[0]
    points: list[CurvePoint] = []
    for gpus, tokens in throughputs:
        best: SplitEstimate = replace(estimate, tokens_per_second=tokens)
        first, last = (points[0], points[-1]) if points else (None, None)
        marginal = 1.0
        if first is not None and last is not None:
            marginal = (tokens - last.best.tokens_per_second) / (gpus - last.gpus) * first.gpus
            marginal /= first.best.tokens_per_second
        points.append(CurvePoint(gpus, best, 1.0, marginal))
    return points


def test_useful_is_the_last_before_the_first_that_is_not_worth_it() -> None:
    points = _points((8, 800.0), (16, 1600.0), (32, 2600.0), (64, 6000.0))
    assert [round(point.marginal_efficiency, 3) for point in points] == [1.0, 1.0, 0.625, 1.062]
    assert useful_gpus(points, 0.7) == 16
    assert useful_gpus(points, 0.6) == 64
    assert useful_gpus([], 0.7) is None


def test_a_small_batch_stops_paying_early() -> None:
    """On a slow network, where every step sends the gradients."""
    job = _job(network="25GbE", global_batch=32, sequence=2048)
    curve = scaling_curve(_ADVISOR, job, [8, 16, 32])
    assert [point.gpus for point in curve.points] == [8, 16, 32]
    assert curve.useful_gpus == 8
    assert curve.points[-1].marginal_efficiency < 0.7
    for before, after in itertools.pairwise(curve.points):
        first = curve.points[0]
        more = (after.best.tokens_per_second - before.best.tokens_per_second) / (after.gpus - before.gpus)
        assert after.marginal_efficiency == pytest.approx(more / (first.best.tokens_per_second / first.gpus))
    generous = scaling_curve(_ADVISOR, job, [8, 16, 32], threshold=0.01)
    assert (generous.useful_gpus or 0) >= 8


def test_own_runs_move_all_times_and_narrow_them() -> None:
    job = _job()
    plain = scaling_curve(_ADVISOR, job, [8, 16])
    took = 1.3 * plain.points[0].best.step_seconds
    curve = scaling_curve(_ADVISOR, job, [8, 16], measured={8: took})
    for before, after in zip(plain.points, curve.points, strict=True):
        assert after.best.step_seconds == pytest.approx(1.3 * before.best.step_seconds)
        assert sum(after.best.parts.values()) == pytest.approx(after.best.step_seconds)
        assert after.best.step_high_seconds / after.best.step_seconds < (
            before.best.step_high_seconds / before.best.step_seconds
        )
        assert after.marginal_efficiency == pytest.approx(before.marginal_efficiency)
    assert "OWN_RUNS" in [reason.code for reason in curve.reasons]
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(PlanError):
            scaling_curve(_ADVISOR, job, [8], measured={8: wrong})


def test_counts_that_do_not_divide_are_left_out_and_said() -> None:
    curve = scaling_curve(_ADVISOR, _job(), [7, 8])
    assert [point.gpus for point in curve.points] == [8]
    assert "COUNT_LEFT_OUT" in [reason.code for reason in curve.reasons]
    with pytest.raises(PlanError):
        scaling_curve(_ADVISOR, _job(), [8], threshold=1.5)
    with pytest.raises(PlanError):
        scaling_curve(_ADVISOR, _job(), [])


def test_python_answers_by_name_by_configuration_and_refuses_the_rest(kopt_home: Any) -> None:
    question: dict[str, Any] = {"gpu": "h100", "sequence": 4096, "global_batch": 64, "advisor": _ADVISOR}
    named = kopt.parallelism("Llama-3-8B", gpus=8, **question)
    config = {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    }
    assert kopt.parallelism(config, gpus=8, **question).splits[0].split == named.splits[0].split
    assert kopt.scaling("Llama-3-8B", gpus=[8, 16], **question).useful_gpus == 16
    with pytest.raises(UnknownModelError):
        kopt.parallelism("no such thing", gpus=8, **question)
    with pytest.raises(PlanError, match="megatron"):
        kopt.parallelism("Llama-3-8B", gpus=8, framework="abacus", **question)
    with pytest.raises(PlanError):
        kopt.parallelism("Llama-3-8B", gpus=8, likely=2.0, **question)
