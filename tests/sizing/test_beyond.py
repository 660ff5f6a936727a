"""Answers above any GPU: what would make the job fit is said, and what was likely misread is refused."""

import re
from dataclasses import replace

import pytest

from kopt.core.gpu_catalogue import find_gpu, gpu_catalogue
from kopt.core.reason import Reason
from kopt.core.units import GIB
from kopt.core.workload.training_plan import Sharding, TrainingPlan
from kopt.formats.entrypoint import what_runs
from kopt.formats.trainers import processes_of, read_plan
from kopt.models.sizing.analytic import estimate_plan
from kopt.models.sizing.beyond import ImplausibleSizeError, from_plausible_plan, largest_gpu, ways_to_fit

A100 = find_gpu("A100-SXM4-80GB")
USABLE = int(largest_gpu().usable_bytes)
FULL_70B = "litgpt finetune_full meta-llama/Llama-2-70b-hf --precision bf16-true"
HF = "--per_device_train_batch_size {batch} --max_length 4096 --bf16 True"


def plan_of(command: str) -> tuple[TrainingPlan, bool]:
    entrypoint = what_runs(command, lambda _: None)
    processes = processes_of(entrypoint, lambda _: None)
    plan = read_plan(entrypoint, lambda _: None, trainer=entrypoint.trainer or "hf", world_size=processes)
    return plan, processes is not None


def reason_of(command: str) -> Reason | None:
    plan, stated = plan_of(command)
    code = from_plausible_plan(plan, gpu=A100, processes_stated=stated)
    return next((reason for reason in code.reasons if reason.code == "ABOVE_ANY_GPU"), None)


def refused(command: str) -> str:
    plan, stated = plan_of(command)
    with pytest.raises(ImplausibleSizeError) as error:
        from_plausible_plan(plan, gpu=A100, processes_stated=stated)
    assert error.value.reason.code == "DOUBTFUL_SIZE"
    return str(error.value)


def test_a_job_that_fits_some_gpu_is_answered_without_a_word() -> None:
    assert reason_of("litgpt finetune_lora meta-llama/Llama-2-7b-hf --devices 1") is None


def test_a_job_above_any_gpu_is_told_the_largest_and_what_would_fit() -> None:
    reason = reason_of(f"{FULL_70B} --devices 1")
    assert reason is not None
    assert reason.numbers["largest_bytes"] == max(gpu.usable_bytes for gpu in gpu_catalogue().values())
    assert str(reason.numbers["largest"]) in reason.message
    assert f"fit the {A100.name} with" in reason.message
    assert "optimizer states sharded over" in reason.message


def test_ways_out_hold_what_the_formulas_say_of_them() -> None:
    plan, _ = plan_of(f"{FULL_70B} --devices 1")
    sharded, adapted = ways_to_fit(plan, USABLE)
    assert "adapters of rank 16" in adapted.change
    gpus = int(re.findall(r"over (\d+) GPUs", sharded.change)[0])

    def need(data: int) -> int:
        parallel = replace(plan.parallel, data=data, sharding=Sharding.PARAMETERS)
        layer = 4.0 * plan.model.parameters() / plan.model.layers
        split = replace(plan, parallel=parallel, buffer_bytes=layer, step_bytes=0.0)
        return int(estimate_plan(split, gpu_bytes=USABLE).worst.total)

    assert sharded.needed_bytes == need(gpus) <= USABLE < need(gpus // 2)


def test_an_engine_is_split_over_more_gpus() -> None:
    reason = reason_of("vllm serve meta-llama/Llama-3.1-405B --tensor-parallel-size 1")
    assert reason is not None
    assert "the model split over 16 GPUs" in reason.message


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        ("trl sft --model_name_or_path meta-llama/Llama-2-70b-hf", "does not say on how many GPUs"),
        ("litgpt finetune_full meta-llama/Llama-3.1-405B --devices 1", "how they share the model was not read"),
        (
            "torchrun --nproc_per_node 8 t.py --model_name_or_path gpt2-xl --packing True " + HF.format(batch=9000),
            "9,000 sequences of 4,096 tokens",
        ),
    ],
)
def test_what_was_likely_misread_is_refused_with_the_cause(command: str, cause: str) -> None:
    text = refused(command)
    assert cause in text
    assert re.search(r"\bgive\b", text)
    assert largest_gpu().name in text


def test_no_way_out_is_named_that_does_not_fit() -> None:
    plan, _ = plan_of(f"{FULL_70B} --devices 1")
    assert ways_to_fit(plan, GIB) == ()


FULL_LENGTH = "torchrun --nproc_per_node 8 t.py --model_name_or_path meta-llama/Llama-2-7b-hf " + HF


def test_batches_that_may_be_shorter_are_answered_with_both() -> None:
    reason = reason_of(FULL_LENGTH.format(batch=16))
    assert reason is not None
    assert "may be shorter than the 4,096 tokens" in reason.message
    refused(FULL_LENGTH.format(batch=9000))


@pytest.mark.parametrize(
    ("layers", "most"),
    [(32, 60), (3000, 2), (10_000, 0)],
)
def test_deep_models_are_priced_less_often(monkeypatch: pytest.MonkeyPatch, layers: int, most: int) -> None:
    plan, _ = plan_of(f"{FULL_70B} --devices 1")
    plan = replace(plan, model=replace(plan.model, layers=layers))
    priced: list[int] = []

    def counting(*_: object, **__: object) -> object:
        priced.append(1)
        return estimated

    estimated = estimate_plan(plan_of(f"{FULL_70B} --devices 1")[0])
    monkeypatch.setattr("kopt.models.sizing.beyond.estimate_plan", counting)
    ways_to_fit(plan, GIB)
    assert len(priced) <= most


def test_nothing_is_priced_for_what_is_absurd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kopt.models.sizing.beyond.ways_to_fit", lambda *_: pytest.fail("no ways are sought"))
    refused("litgpt finetune_full meta-llama/Llama-3.1-405B --devices 1")


def test_ways_out_are_of_the_gpus_vendor() -> None:
    plan, _ = plan_of("vllm serve meta-llama/Llama-3.1-405B --tensor-parallel-size 1")
    code = from_plausible_plan(plan, gpu=find_gpu("MI250X"), processes_stated=True)
    assert any("fit the MI" in reason.message for reason in code.reasons)
