"""Every split divides, none is missing, and a framework's own settings say the same as the split."""

import itertools
import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.workload.language_models import find_language_model
from kopt.core.workload.split import Framework, Matmul, Split, TrainingJob
from kopt.core.workload.training_plan import ModelShape, PlanError, Recompute, Sharding
from kopt.formats.entrypoint import what_runs
from kopt.formats.trainers import read_plan
from kopt.models.parallelism.flags import plan_of, settings_of
from kopt.models.parallelism.splits import splits_of


def _job(model: str = "Llama-3-8B", **changes: Any) -> TrainingJob:
    job = TrainingJob(find_language_model(model), "H100-SXM5-80GB", 16, 8, 4096, 64)
    return replace(job, **changes)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 4, 6, 8, 16, 24, 64]),
    st.sampled_from([1, 6, 12, 32, 96]),
    st.sampled_from([512, 4096, 12288, 32768]),
    st.integers(1, 12),
    st.sampled_from([(4, 4), (8, 2), (12, 12), (32, 8)]),
    st.sampled_from(list(Framework)),
)
def test_all_splits_divide(
    gpus: int, batch: int, sequence: int, layers: int, heads: tuple[int, int], framework: Framework
) -> None:
    model = ModelShape("any", layers, 64 * heads[0], *heads, 64, 256 * heads[0], 1024)
    job = TrainingJob(model, "H100-SXM5-80GB", gpus, min(gpus, 8), sequence, batch, framework)
    found = list(splits_of(job))
    assert len(found) == len(set(found))
    for split in found:
        assert split.world == gpus
        assert batch % (split.data * split.micro_batch) == 0
        assert heads[0] % split.tensor == heads[1] % split.tensor == 0
        assert sequence % (split.context * split.tensor) == 0
        assert (layers + 2 * split.outer_stages_less) % split.pipeline == 0
        per_stage = (layers + 2 * split.outer_stages_less) // split.pipeline
        assert per_stage % split.virtual_stages == 0
        if split.virtual_stages > 1:
            assert batch // split.data // split.micro_batch % split.pipeline == 0


def test_none_that_divides_is_missing() -> None:
    """Against all combinations of degrees, tried one by one."""
    job = _job(global_batch=48)
    expected = {
        (gpus // (tensor * pipeline * context), tensor, pipeline, context)
        for gpus in (job.gpus,)
        for tensor, pipeline, context in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2))
        if gpus % (tensor * pipeline * context) == 0 and 48 % (gpus // (tensor * pipeline * context)) == 0
    }
    found = {(split.data, split.tensor, split.pipeline, split.context) for split in splits_of(job)}
    # 34 layers, with embedding and head, divide by 17 stages, which 16 GPUs have not.
    assert found == expected


def test_what_others_run_is_among_them() -> None:
    """The 70B and 405B runs of NVIDIA's performance summaries."""
    large = _job("Llama-3-70B", gpus=64, global_batch=256, sequence=8192)
    found = list(splits_of(large))
    assert any((s.tensor, s.pipeline, s.virtual_stages, s.micro_batch) == (4, 8, 5, 1) for s in found)
    assert any(s.sharding is Sharding.PARAMETERS and s.tensor == s.pipeline == 1 for s in found)
    larger = _job("Llama-3.1-405B", gpus=1024, global_batch=1536, sequence=8192)
    assert any((s.tensor, s.pipeline, s.context) == (8, 8, 2) and s.outer_stages_less for s in splits_of(larger))


@pytest.mark.parametrize("framework", list(Framework))
@pytest.mark.parametrize("model", ["Llama-3-8B", "gpt2-xl", "Qwen3-30B-A3B", "DeepSeek-V2-Lite"])
def test_settings_are_read_back_as_the_split(framework: Framework, model: str) -> None:
    job = _job(model, framework=framework)
    found = list(splits_of(job))
    assert found
    for split in found[:: max(1, len(found) // 60)]:
        plan = plan_of(job, split)
        parallel = plan.parallel
        degrees = (parallel.data, parallel.tensor, parallel.pipeline, parallel.context, parallel.expert)
        assert degrees == (split.data, split.tensor, split.pipeline, split.context, split.expert)
        assert parallel.virtual_stages == split.virtual_stages
        assert parallel.sharding is split.sharding
        assert plan.micro_batch == split.micro_batch
        assert plan.micro_batch * plan.accumulation * split.data == job.global_batch
        assert plan.recompute is split.recompute
        assert (plan.model, plan.sequence) == (job.model, job.sequence)


def test_printed_arguments_are_what_kopt_estimate_reads() -> None:
    """The text behind a command, through the reader of commands, gives the plan that was sized."""
    job = _job("Qwen3-30B-A3B", matmul=Matmul.FP8)
    for split in list(splits_of(job))[::40]:
        text = next(each.text for each in settings_of(job, split) if each.framework is Framework.MEGATRON)
        command = ["torchrun", "--nnodes", "2", "--nproc-per-node", "8", "pretrain_gpt.py", *shlex.split(text)]
        read = read_plan(what_runs(command, lambda path: None), _nothing)
        assert replace(read, model=job.model) == plan_of(job, split)
        assert abs(read.model.parameters() / job.model.parameters() - 1) < 0.01


def _nothing(_: str) -> Mapping[str, Any] | None:
    return None


def test_frameworks_get_only_what_they_can_run() -> None:
    job = _job(framework=Framework.DEEPSPEED)
    data_only = Split(16, sharding=Sharding.PARAMETERS, recompute=Recompute.FULL)
    texts = {each.framework: each for each in settings_of(job, data_only)}
    assert set(texts) == set(Framework)
    assert next(iter(texts)) is Framework.DEEPSPEED
    document = json.loads(texts[Framework.DEEPSPEED].text)
    assert document["zero_optimization"]["stage"] == 3
    assert document["train_batch_size"] == 64 == 16 * document["gradient_accumulation_steps"]
    staged = Split(4, 2, 2, sharding=Sharding.OPTIMIZER)
    assert Framework.DEEPSPEED not in {each.framework for each in settings_of(job, staged)}
    note = next(each.note for each in settings_of(job, staged) if each.framework is Framework.TORCHTITAN)
    assert "shards weights" in note


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": 0},
        {"gpus": 1 << 20},
        {"gpus": 12},
        {"sequence": -1},
        {"global_batch": 1 << 40},
        {"price": float("nan")},
        {"price": -1.0},
    ],
)
def test_what_is_no_job_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        _job(**changes)
