"""Servers' arguments as plans."""

import pytest
from formats.trainers_files import plan

from kopt.core.workload.training_plan import Precision
from kopt.formats.trainers import generation_plan


@pytest.mark.parametrize(
    ("command", "share", "tensor", "held"),
    [
        (
            "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 --max-model-len 4096 --gpu-memory-utilization 0.8",
            0.8,
            4,
            "bf16",
        ),
        ("vllm serve Qwen/Qwen2.5-7B-Instruct-AWQ --max-model-len 4096", 0.9, 1, "int4"),
        ("python -m vllm.entrypoints.openai.api_server --model gpt2 --max-model-len 1024 --dtype half", 0.9, 1, "fp16"),
        ("python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --context-length 8192", 0.88, 2, "bf16"),
        (
            "text-generation-launcher --model-id Qwen/Qwen3-8B --num-shard 2 --max-total-tokens 4096 --quantize fp8",
            0.95,
            2,
            "fp8",
        ),
    ],
)
def test_servers_fill_a_share(command: str, share: float, tensor: int, held: str) -> None:
    found = plan(command)
    assert found.serving is not None
    assert found.serving.reserve_share == pytest.approx(share)
    assert (found.parallel.tensor, found.weights.value, found.unknown) == (tensor, held, ())


def test_a_model_in_a_folder_is_read_from_its_own_configuration() -> None:
    found = plan("vllm serve own --max-model-len 2048")
    assert (found.model.layers, found.model.hidden) == (4, 1024)


def test_an_fp8_model_s_head_is_loaded_apart_from_the_embedding_it_was_tied_to() -> None:
    plain, eight = (generation_plan({"model": "Qwen/Qwen3-1.7B", "quantization": one}) for one in ("", "fp8"))
    assert (plain.model.tied, eight.model.tied, eight.weights) == (True, False, Precision.FP8)


@pytest.mark.parametrize(
    ("command", "held"),
    [
        ("vllm serve openai/gpt-oss-120b", Precision.MXFP4),
        ("vllm serve unsloth/gpt-oss-20b-BF16", Precision.BF16),
        ("vllm serve deepseek-ai/DeepSeek-V3 -tp 8", Precision.FP8),
        ("vllm serve mistralai/Mistral-Small-24B-Instruct-2501", Precision.BF16),
        ("vllm serve mistralai/Mistral-Small-24B-Instruct-2501 --quantization fp8", Precision.FP8),
    ],
)
def test_models_are_held_as_they_are_published(command: str, held: Precision) -> None:
    assert plan(command).weights is held
