"""XTuner's commands: files in Python and built-in names, DeepSpeed by name, adapters, pictures, and what is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from formats.trainers_files import FILES

from kopt.core.workload.training_plan import PlanError, Precision, Recompute, Sharding, TrainingPlan
from kopt.formats.entrypoint import what_runs
from kopt.formats.trainers import processes_of, read_plan
from kopt.formats.trainers.xtuner import configurations
from kopt.models.sizing.estimate import EstimateOptions, estimate_and_code

CONFIG = FILES["xtuner.py"]


def plan(command: str, **changes: Any) -> TrainingPlan:
    files: dict[str, Mapping[str, Any]] = {"c.py": {**CONFIG, **changes}}
    entrypoint = what_runs(command, lambda _: None)
    return read_plan(entrypoint, files.get, world_size=processes_of(entrypoint, files.get))


def test_a_file_says_model_adapter_batch_and_precision() -> None:
    result = plan("xtuner train c.py")
    assert (result.framework, result.micro_batch, result.sequence) == ("xtuner", 2, 2048)
    assert result.recompute is Recompute.FULL
    assert result.compute is Precision.FP16
    assert result.adapter is not None
    assert (result.adapter.rank, result.adapter.targets) == (64, 7), "on every linear layer, where none is named"
    assert result.weights is Precision.FP32, "peft casts what is not quantised to 32 bits before adapters go on it"


def test_deepspeed_keeps_sixteen_bits_and_shards() -> None:
    result = plan("NPROC_PER_NODE=8 xtuner train c.py --deepspeed deepspeed_zero3_offload")
    assert (result.weights, result.parallel.data) == (Precision.FP16, 8)
    assert (result.parallel.sharding, result.parallel.offload_optimizer) == (Sharding.PARAMETERS, True)
    assert plan("xtuner train --deepspeed deepspeed_zero2 c.py").weights is Precision.FP16, "the file may stand last"


def test_a_built_in_name_is_as_good_as_a_file() -> None:
    assert len(configurations()) > 580
    result = plan("xtuner train internlm2_chat_7b_qlora_oasst1_e3")
    assert (result.weights, result.micro_batch) == (Precision.NF4_DOUBLE, 1)
    assert (
        plan("xtuner train internlm2_chat_7b_qlora_oasst1_e3 --cfg-options train_dataloader.batch_size=6").micro_batch
        == 6
    )


def test_a_copy_of_a_built_in_that_is_not_at_hand_is_taken_for_it() -> None:
    result = plan("xtuner train ./internlm2_chat_7b_qlora_oasst1_e3_copy.py")
    assert result.weights is Precision.NF4_DOUBLE
    assert any("taken as the built-in" in reason.message for reason in result.unknown)


def test_a_projector_alone_is_trained_in_front_of_a_frozen_model() -> None:
    result = plan("xtuner train llava_llama3_8b_instruct_clip_vit_large_p14_336_e1_gpu8_pretrain")
    assert result.adapter is not None
    assert result.adapter.trainable < 50e6
    assert result.beside_bytes == pytest.approx(2 * 304e6)


@pytest.mark.parametrize(
    ("command", "changes", "message"),
    [
        ("xtuner train absent.py", {}, "absent.py cannot be read; give"),
        ("xtuner train no_such_name", {}, "no_such_name cannot be read; give"),
        ("xtuner train", {}, "no configuration is named; give"),
        ("torchrun xtuner/v1/train/cli/sft.py --config c.py", {}, "XTuner V1 have no formulas; give"),
        ("xtuner train absent_copy.py", {}, "absent_copy.py cannot be read; give"),
        ("xtuner chat internlm2", {}, "does not train; give"),
        ("xtuner train c.py", {"trainer": {"type": "TrainerConfig"}}, "XTuner V1 have no formulas; give"),
        ("xtuner train c.py", {"model": None, "_base_": [".base"]}, "builds on .base, which is not read; give"),
        ("xtuner train c.py", {"_base_": ["./qlora.py"]}, "builds on ./qlora.py, which is not read; give"),
        ("xtuner train c.py", {"_base_": "./qlora.py"}, "builds on ./qlora.py, which is not read; give"),
        ("xtuner train c.py", {"model": {}}, "no model is named; give"),
        ("xtuner train c.py", {"train_dataloader": {"batch_size": [1, {}]}}, "batch_size"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_give(command: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(command, **changes)


def test_settings_that_only_running_it_would_tell_are_named(tmp_path: Path) -> None:
    result = plan("xtuner train c.py", _unread_=["batch_size", "hooks", "lora"])
    assert [reason.message for reason in result.unknown if "only running" in reason.message] == [
        "batch_size, lora: only running the configuration would tell; taken as if they were not given"
    ]
    assert not plan("xtuner train c.py", _unread_=["hooks"]).unknown


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "no model is named"), ("model = dict(", "not Python"), ("import os\nos.abort()\nmodel = 3", "no model")],
    ids=["empty", "cut", "hostile"],
)
def test_a_bad_file_is_answered_with_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.py").write_text(text, encoding="utf-8")
    options = EstimateOptions(folder=tmp_path, python="/no-python")
    made, result = estimate_and_code("xtuner train bad.py", model="shipped", settings=None, options=options)
    assert made.memory.refused
    assert message in result.problem
