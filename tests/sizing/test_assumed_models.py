"""Estimates whose model or batch lengths are not known: answered, and as wide as that makes them."""

from dataclasses import replace
from typing import Any

import pytest

from kopt.core.workload.sizing import SizingEstimate
from kopt.models.sizing.estimate import EstimateOptions, estimate_and_code
from kopt.models.sizing.trace_summary import read_summary, summary

COMMAND = (
    "swift sft --model {} --tuner_type lora --torch_dtype bfloat16 --max_length 4096 --per_device_train_batch_size 2"
)


def estimate(command: str) -> tuple[SizingEstimate, Any]:
    options = EstimateOptions("a100-80gb")
    made, result = estimate_and_code(command, model="shipped", settings=None, options=options)
    return made, result.code


def test_a_model_known_by_its_size_alone_is_answered_with_a_wider_interval() -> None:
    known, _ = estimate(COMMAND.format("Qwen/Qwen3-8B"))
    assumed, code = estimate(COMMAND.format("someone/Qwen9-8B"))
    assert {reason.code for reason in assumed.reasons} >= {"SHAPE_FROM_NAME"}
    assert "SHAPE_FROM_NAME" not in {reason.code for reason in known.reasons}
    assert assumed.memory.confidence < known.memory.confidence
    width, wider = (made.memory.high / made.memory.low for made in (known, assumed))
    assert wider > 2 * width
    assert code.above == 1.5


def test_batches_of_unknown_length_lower_only_the_low_end() -> None:
    packed, _ = estimate(f"{COMMAND.format('Qwen/Qwen3-8B')} --packing true")
    unpacked, code = estimate(COMMAND.format("Qwen/Qwen3-8B"))
    assert code.below > 1.3
    assert code.above == 1.0
    assert unpacked.memory.low < packed.memory.low
    assert unpacked.memory.high >= packed.memory.high


def test_what_is_doubtful_reaches_the_endpoint() -> None:
    _, code = estimate(COMMAND.format("someone/Qwen9-8B"))
    read = read_summary(summary(code))
    assert replace(read, inputs=code.inputs) == code
    assert set(read.inputs.items()) < set(code.inputs.items())
    older = summary(code)
    del older["below"], older["above"]
    assert (read_summary(older).below, read_summary(older).above) == (1.0, 1.0)
    with pytest.raises(ValueError, match="above is a factor"):
        read_summary(summary(code) | {"above": 0.5})


def test_a_later_release_has_its_relatives_dimensions_and_a_doubt() -> None:
    made, code = estimate(
        "vllm serve deepseek-ai/DeepSeek-V3.9-Exp --tensor-parallel-size 16 --gpu-memory-utilization .8"
    )
    assert "SHAPE_FROM_NAME" in {reason.code for reason in made.reasons}
    assert code.above == 1.3


def test_a_server_that_cannot_hold_its_weights_is_said_not_to_start() -> None:
    """405 billion numbers in 16 bits on eight GPUs are 94 GiB on each, of which no share of 80 makes less."""
    serve = "sglang serve --model-path meta-llama/Llama-3.1-405B-Instruct --tp"
    made, _ = estimate(f"{serve} 8")
    assert made.memory.value > 94 * 2**30
    assert not made.fits["A100-SXM4-80GB"]
    assert any("would not start" in warning for warning in made.warnings)
    more, _ = estimate(f"{serve} 16")
    assert more.memory.high <= 80 * 2**30
    assert not more.warnings


def test_an_engine_without_a_known_model_is_bounded_by_its_share() -> None:
    made, _ = estimate("vllm serve someone/Unheard-Of --gpu-memory-utilization 0.5")
    assert made.memory.high == pytest.approx(0.5 * 80 * 2**30, rel=0.03)
    assert any("does not start" in text for text in made.assumptions)
