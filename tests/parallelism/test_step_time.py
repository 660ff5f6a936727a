"""Step times follow physics, published measurements, and parameters that made them."""

import hashlib
import json
import math
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.hardware.bandwidth import Collective
from kopt.core.workload.language_models import find_language_model
from kopt.core.workload.split import Matmul, Split, TrainingJob
from kopt.core.workload.training_plan import Parallelism, Recompute, Sharding, TrainingPlan
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.models.parallelism.communication import ClusterDescription, Wires, step_communication
from kopt.models.parallelism.efficiency import PRIORS, shipped_efficiency
from kopt.models.parallelism.fitting import errors_of, family_weights, fit_parameters, quantile, rows_of
from kopt.models.parallelism.flags import plan_of
from kopt.models.parallelism.measured_steps import MeasuredStep, read_measured_steps
from kopt.models.parallelism.step_time import OWN_FRAMEWORKS, generation_of, step_row
from kopt.models.parallelism.work import step_work
from kopt.models.registry.loading import SHIPPED

_PUBLISHED = Path(__file__).parents[2] / "benchmarks" / "published_step_times.csv"
_BANDWIDTH = load_bandwidth(SHIPPED)
_H100 = ClusterDescription("H100-SXM5-80GB", 8, "8x NDR400 IB")


def _seconds(split: Split, cluster: ClusterDescription = _H100, model: str = "Llama-3-8B", batch: int = 128) -> float:
    job = TrainingJob(find_language_model(model), cluster.gpu, split.world, 8, 8192, batch)
    return _of_plan(plan_of(job, split), cluster)


def _of_plan(plan: TrainingPlan, cluster: ClusterDescription = _H100, matmul: str = "bf16") -> float:
    communication = step_communication(plan, Wires(cluster, _BANDWIDTH))
    row = step_row(plan, cluster, step_work(plan), communication, matmul)
    return float(shipped_efficiency().seconds([row])[0])


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from([Sharding.OPTIMIZER, Sharding.PARAMETERS]),
)
def test_more_work_takes_longer_and_a_slower_network_is_never_faster(
    tensor: int, pipeline: int, context: int, sharding: Sharding
) -> None:
    split = Split(64 // tensor // pipeline // context, tensor, pipeline, context, sharding=sharding)
    seconds = _seconds(split)
    assert 0 < seconds < math.inf
    assert _seconds(split, batch=256) > seconds
    assert _seconds(replace(split, recompute=Recompute.FULL)) > seconds
    assert _seconds(split, replace(_H100, network="1x 25GbE")) >= seconds * 0.999
    assert _seconds(split, model="Llama-3-70B") > 4 * seconds


def test_eight_bits_are_faster_and_bubbles_shrink_with_chunks() -> None:
    job = TrainingJob(find_language_model("Llama-3-70B"), _H100.gpu, 64, 8, 8192, 64)
    plan = plan_of(job, Split(2, 4, 8, sharding=Sharding.OPTIMIZER))
    low = plan_of(replace(job, matmul=Matmul.FP8), Split(2, 4, 8, sharding=Sharding.OPTIMIZER))
    assert _of_plan(low, matmul="fp8") < 0.8 * _of_plan(plan)
    interleaved = plan_of(job, Split(2, 4, 8, virtual_stages=5, sharding=Sharding.OPTIMIZER))
    assert step_work(interleaved).bubbles == pytest.approx(step_work(plan).bubbles / 5)
    assert _of_plan(interleaved) < _of_plan(plan)


def test_flops_are_six_per_weight_and_token_and_scores_beside() -> None:
    """Narayanan et al. 2021, table 1: 175 billion weights, 96 layers of 12288, batch 1536, sequences of 2048."""
    model = replace(
        find_language_model("gpt2"), layers=96, hidden=12288, heads=96, kv_heads=96, head_dim=128, ffn=49152
    )
    model = replace(model, vocab=51200, positions=2048)
    plan = TrainingPlan("megatron", model, 1, 2048, accumulation=1536)
    layers, hidden, tokens = 96, 12288, 1536 * 2048
    published = 96 * tokens * layers * hidden**2 * (1 + 2048 / (6 * hidden) + 51200 / (16 * layers * hidden)) * 3 / 4
    assert step_work(plan).model_flops == pytest.approx(published, rel=0.01)


def test_groups_share_the_network_of_their_node() -> None:
    """Eight rings of one GPU per node move as much over the cards as one ring of all with eight times the message."""
    wires = Wires(_H100, _BANDWIDTH)
    alone = wires.seconds(Collective.ALL_REDUCE, 16, 8, 1e8)
    together = wires.seconds(Collective.ALL_REDUCE, 128, 1, 8e8)
    assert alone == pytest.approx(together, rel=1e-6)
    assert wires.seconds(Collective.ALL_REDUCE, 8, 1, 1e8) < alone
    assert wires.seconds(Collective.ALL_REDUCE, 1, 1, 1e8) == 0.0
    rack = Wires(ClusterDescription("GB200", 4, "", "NVL72"), _BANDWIDTH)
    assert rack.domains(64, 1) == 1
    assert Wires(_H100, _BANDWIDTH).domains(64, 1) == 8


def test_published_steps_have_sources_and_the_shipped_parameters_are_of_them() -> None:
    steps = read_measured_steps(_PUBLISHED)
    assert len(steps) > 1000
    for step in steps:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{10} \S+", step.source), step.source
    document = json.loads(
        resources.files("kopt.models.parallelism").joinpath("efficiency.json").read_text(encoding="utf-8")
    )
    assert document["fitted_on"]["sha256"] == hashlib.sha256(_PUBLISHED.read_bytes()).hexdigest()
    assert set(document["parameters"]) == set(PRIORS)
    made = [step for step in steps if step.stable and not step.apart]
    assert document["fitted_on"]["steps"] == len(made)
    rows = rows_of(made, _BANDWIDTH)
    errors = np.abs(np.expm1(errors_of(shipped_efficiency().parameters, made, rows)))
    large = np.array([not row.small for row in rows])
    # On what they were fitted on, so that a change of the physics without a refit shows.
    assert quantile(errors[large], np.ones(int(large.sum())), 0.5) < 0.1
    assert quantile(errors[large], np.ones(int(large.sum())), 0.9) < 0.3
    assert document["spread"] < 0.4


def test_gpus_made_for_export_are_read_as_the_chip_that_they_are_with_fewer_links() -> None:
    exported = [step for step in read_measured_steps(_PUBLISHED) if step.cluster.link == "NV8"]
    assert {step.cluster.gpu for step in exported} == {"A100-SXM4-80GB", "H100-SXM5-80GB"}


def test_every_framework_with_a_speed_of_its_own_was_measured_and_others_run_as_the_usual_do() -> None:
    measured = {step.plan.framework for step in read_measured_steps(_PUBLISHED) if not step.apart}
    assert set(OWN_FRAMEWORKS) < measured
    job = TrainingJob(find_language_model("Llama-3-8B"), _H100.gpu, 8, 8, 8192, 64)
    plan = plan_of(job, Split(8, sharding=Sharding.PARAMETERS))
    usual, unknown, slower = (_of_plan(replace(plan, framework=each)) for each in ("megatron", "a-new-one", "paddle"))
    assert unknown == usual < slower


def test_one_measured_graphics_card_says_nothing_of_the_others() -> None:
    shipped = shipped_efficiency()
    assert all(map(shipped.knows, ("H100-SXM5-80GB", "H100-PCIe-80GB", "RTX-4090", "B200")))
    assert not any(map(shipped.knows, ("RTX-5090", "RTX-A6000", "RTX-6000-Ada", "MI300X")))
    assert {generation_of(gpu) for gpu in ("RTX-4090", "RTX-6000-Ada", "L40S", "L4")} == {"ada"}


def test_attention_runs_on_the_kernel_of_its_gpu_and_framework() -> None:
    """Long sequences are nearly all attention: on Hopper fused models have cuDNN's kernel, others FlashAttention 2."""
    job = TrainingJob(find_language_model("Llama-3-8B"), _H100.gpu, 8, 8, 131072, 8)
    plan = plan_of(job, Split(1, context=8, sharding=Sharding.PARAMETERS))
    a100 = replace(_H100, gpu="A100-SXM4-80GB")
    gains = [
        _of_plan(replace(plan, framework=framework), a100) / _of_plan(replace(plan, framework=framework))
        for framework in ("megatron", "fsdp")
    ]
    assert gains[0] > 1.3 * gains[1] > 1.3


def test_a_fit_recovers_what_made_the_times() -> None:
    """Times made with other efficiencies than the priors', on the plans of published steps."""
    steps = [step for step in read_measured_steps(_PUBLISHED) if step.family.startswith(("foundry", "nemo"))][:120]
    rows = rows_of(steps, _BANDWIDTH)
    truth = {name: value for name, (value, _) in PRIORS.items()}
    truth |= {"products_ampere_half": 0.5, "products_hopper_half": 0.8, "activations_eager": 2.2}
    lacking = errors_of(truth, steps, rows)
    made = [_timed(step, step.seconds * math.exp(error)) for step, error in zip(steps, lacking, strict=True)]
    found = fit_parameters(made, rows)
    for name in ("products_ampere_half", "products_hopper_half"):
        assert found[name] == pytest.approx(truth[name], rel=0.1)
    again = np.abs(np.expm1(errors_of(found, made, rows)))
    assert float(np.median(again)) < 0.03


def _timed(step: MeasuredStep, seconds: float) -> MeasuredStep:
    return replace(step, seconds=seconds)


def test_families_weigh_alike() -> None:
    steps = read_measured_steps(_PUBLISHED)[:200]
    weights = family_weights(steps)
    sums = {family: sum(w for s, w in zip(steps, weights, strict=True) if s.family == family) for family in
            {step.family for step in steps}}  # fmt: skip
    assert all(total == pytest.approx(1.0) for total in sums.values())


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("step_seconds", "0", "no step's time"),
        ("step_seconds", "nan", "no step's time"),
        ("tensor", "7", "do not divide"),
        ("global_batch", "13", "does not divide"),
        ("sharding", "some", "some"),
        ("gpus", "many", "many"),
    ],
)
def test_rows_that_cannot_be_are_refused_with_their_line(tmp_path: Path, column: str, value: str, says: str) -> None:
    head, first, *_ = _PUBLISHED.read_text(encoding="utf-8").splitlines()
    cells = dict(zip(head.split(","), first.split(","), strict=True)) | {column: value}
    path = tmp_path / "steps.csv"
    path.write_text(f"{head}\n{','.join(cells.values())}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=f"line 2: .*{says}"):
        read_measured_steps(path)


def test_shares_of_parallel_groups_stay_within_the_plan() -> None:
    """Expert parallel groups of one GPU each exchange nothing, wider ones more."""
    model: Any = find_language_model("Qwen3-30B-A3B")
    seconds = []
    for expert in (1, 8, 16):
        parallel = Parallelism(data=16, expert=expert, expert_tensor=1, sharding=Sharding.OPTIMIZER)
        plan = TrainingPlan("megatron", model, 1, 4096, accumulation=4, parallel=parallel)
        seconds.append(step_communication(plan, Wires(_H100, _BANDWIDTH)).expert)
    assert seconds[0] == 0.0 < seconds[1] < seconds[2]
