"""Formulas for memory: what must hold whatever the numbers, hand calculations, and measured runs."""

import math
import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kopt.core.reason import Reason
from kopt.core.units import GIB
from kopt.core.workload.language_models import find_language_model
from kopt.core.workload.sizing import AllocationKind
from kopt.core.workload.training_plan import (
    Adapter,
    Attention,
    Experts,
    ModelShape,
    OptimizerKind,
    Parallelism,
    Precision,
    Recompute,
    Serving,
    Sharding,
    Style,
    TrainingPlan,
)
from kopt.data.memory.load import read_memory_runs
from kopt.models.sizing.analytic import estimate_plan, features_of, formula_of_run, reserved_bytes
from kopt.models.sizing.analytic.activations import kept
from kopt.models.sizing.analytic.states import stage_layers

shapes = st.builds(
    lambda layers, heads, groups, width, ffn, vocab, gated, tied, experts: ModelShape(
        "drawn",
        layers,
        heads * groups * width,
        heads * groups,
        heads,
        width,
        ffn,
        vocab,
        gated=gated,
        tied=tied,
        experts=Experts(8, 2, ffn) if experts else None,
    ),
    st.integers(1, 48),
    st.integers(1, 16),
    st.integers(1, 4),
    st.sampled_from([32, 64, 128]),
    st.integers(64, 20_000),
    st.integers(100, 200_000),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
layouts = st.builds(
    Parallelism,
    data=st.sampled_from([1, 2, 4, 8]),
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 4]),
    context=st.sampled_from([1, 2]),
    expert=st.sampled_from([1, 2]),
    virtual_stages=st.sampled_from([1, 2]),
    sequence_parallel=st.booleans(),
    sharding=st.sampled_from(Sharding),
)
plans = st.builds(
    TrainingPlan,
    st.just("drawn"),
    shapes,
    st.integers(1, 16),
    st.sampled_from([128, 1024, 8192]),
    st.integers(1, 16),
    layouts,
    weights=st.sampled_from([Precision.FP32, Precision.BF16]),
    compute=st.sampled_from([Precision.FP32, Precision.BF16]),
    optimizer=st.sampled_from(OptimizerKind),
    master_bytes=st.sampled_from([0.0, 4.0]),
    foreach_step=st.booleans(),
    preallocated_gradients=st.booleans(),
    recompute=st.sampled_from(Recompute),
    recompute_layers=st.just(1),
    attention=st.sampled_from(Attention),
    style=st.sampled_from(Style),
    dropout=st.booleans(),
    logit_bytes=st.sampled_from([0.0, 6.0, 14.0]),
    adapter=st.none()
    | st.builds(Adapter, st.integers(1, 10**7), st.just(8), st.integers(1, 7), st.booleans(), scales=st.booleans()),
    offload_activations=st.booleans(),
    ends=st.sampled_from([None, Precision.FP32]),
)


def worst(plan: TrainingPlan) -> int:
    return int(estimate_plan(plan).worst.tensors)


def slack(plan: TrainingPlan) -> int:
    """Rounding of six parts."""
    return 16 + worst(plan) // 10**9


@given(plans)
def test_more_data_parallel_ranks_never_need_more_each(plan: TrainingPlan) -> None:
    assume(plan.parallel.sharding is not Sharding.NONE and plan.parallel.data > 1)
    more = replace(plan, parallel=replace(plan.parallel, data=2 * plan.parallel.data))
    assert worst(more) <= worst(plan) + slack(plan)


@given(plans)
def test_sharding_more_never_needs_more_than_what_it_gathers(plan: TrainingPlan) -> None:
    held = [worst(replace(plan, parallel=replace(plan.parallel, sharding=one))) for one in list(Sharding)[:3]]
    assert held[0] + 16 >= held[1]
    assert held[1] + 16 >= held[2]


@given(plans, st.integers(1, 4))
def test_more_layers_never_need_less(plan: TrainingPlan, more: int) -> None:
    assume(plan.adapter is None or plan.parallel.pipeline == 1)
    deeper = replace(plan.model, layers=plan.model.layers + more * plan.parallel.pipeline)
    assert worst(replace(plan, model=deeper)) >= worst(plan) - slack(plan)


@given(plans, st.sampled_from(["sequence", "micro_batch"]))
def test_longer_sequences_and_larger_batches_never_need_less(plan: TrainingPlan, name: str) -> None:
    more: dict[str, Any] = {name: 2 * getattr(plan, name)}
    assert worst(replace(plan, **more)) >= worst(plan) - 16


@given(plans, st.sampled_from(["ffn", "vocab"]))
def test_wider_models_never_need_less(plan: TrainingPlan, name: str) -> None:
    assume(plan.adapter is None or plan.parallel.pipeline == 1)  # an adapter is spread over stages as weights are
    more: dict[str, Any] = {name: 2 * getattr(plan.model, name)}
    assert worst(replace(plan, model=replace(plan.model, **more))) >= worst(plan) - slack(plan)


@given(plans)
def test_flash_attention_and_recomputation_never_keep_more(plan: TrainingPlan) -> None:
    eager = replace(plan, attention=Attention.EAGER, logit_bytes=0.0, foreach_step=False)
    amounts = [kept(replace(eager, recompute=how), 0) for how in (Recompute.FULL, Recompute.SELECTIVE, Recompute.NONE)]
    products = kept(replace(eager, recompute=Recompute.PRODUCTS, style=Style.EAGER, adapter=None), 0)
    assert products <= kept(replace(eager, recompute=Recompute.NONE, style=Style.EAGER, adapter=None), 0) + 16
    assert amounts == sorted(amounts)
    assert kept(replace(eager, attention=Attention.FLASH), 0) <= amounts[-1]


@given(plans)
def test_every_estimate_is_finite_positive_and_explained(plan: TrainingPlan) -> None:
    found = estimate_plan(plan)
    assert len(found.per_stage) == plan.parallel.pipeline
    assert 0 < found.low_share < 1 < found.high_share < 4
    assert found.worst.tensors > 0
    assert {"FORMULA", "PARAMETERS"} <= {reason.code for reason in found.reasons}
    assert all(math.isfinite(value) for value in features_of(plan, found.worst).values())


@given(plans)
def test_an_assumption_widens_the_interval(plan: TrainingPlan) -> None:
    guessed = replace(plan, unknown=(Reason("ASSUMED", "a guess"),))
    assert estimate_plan(guessed).high_share > estimate_plan(plan).high_share
    assert any(reason.message == "a guess" for reason in estimate_plan(guessed).reasons)


GPT = ModelShape("GPT", 4, 1024, 16, 16, 64, 4096, 50_000, gated=False, tied=True, bias=True)


def test_activations_are_those_of_the_paper() -> None:
    """Korthikanti et al. 2022: s · b · h · (34 + 5 · a · s / h) bytes per layer; sequence parallelism divides all."""
    plan = TrainingPlan(
        "megatron",
        GPT,
        2,
        512,
        weights=Precision.BF16,
        compute=Precision.BF16,
        logit_bytes=0.0,
        attention=Attention.EAGER,
        dropout=True,
    )
    tokens = 2 * 512
    paper = 4 * tokens * 1024 * (34 + 5 * 16 * 512 / 1024)
    assert kept(plan, 0) == pytest.approx(paper, rel=0.02)
    split = replace(plan, parallel=Parallelism(tensor=2, sequence_parallel=True))
    assert kept(split, 0) == pytest.approx(paper / 2, rel=0.02)


def test_states_are_sixteen_bytes_for_each_weight_and_divide_by_the_stage() -> None:
    """Rajbhandari et al. 2020, figure 1: 2 + 2 + 12 bytes; 4, 2 + 14/N, and 16/N with N ranks."""
    mixed = TrainingPlan(
        "deepspeed",
        GPT,
        weights=Precision.BF16,
        compute=Precision.BF16,
        gradient_bytes=2.0,
        master_bytes=4.0,
        preallocated_gradients=True,
    )
    numbers = GPT.parameters()
    for sharding, each in (
        (Sharding.NONE, 16.0),
        (Sharding.OPTIMIZER, 4 + 12 / 8),
        (Sharding.GRADIENTS, 2 + 14 / 8),
        (Sharding.PARAMETERS, 16 / 8),
    ):
        parts = estimate_plan(replace(mixed, parallel=Parallelism(data=8, sharding=sharding))).worst
        assert parts.weights + parts.gradients + parts.optimizer == pytest.approx(each * numbers, rel=0.01)


def test_the_first_pipeline_stage_holds_as_many_micro_batches_as_there_are_stages() -> None:
    plan = TrainingPlan("megatron", GPT, 2, 512, 16, Parallelism(pipeline=4), compute=Precision.BF16, logit_bytes=0.0)
    stages = [kept(plan, stage) for stage in range(4)]
    assert stages[0] == pytest.approx(2 * stages[2], rel=0.01)
    assert stages[0] == pytest.approx(4 * kept(replace(plan, accumulation=1), 0), rel=0.01)
    assert stages[3] == pytest.approx(stages[2] / 2, rel=0.2)  # and the last norm's input


def test_a_cache_is_two_numbers_per_head_layer_and_token() -> None:
    """8,192 tokens of Llama 3.1 8B: 32 layers · 8 heads · 128 · 2 · 2 bytes each, 1 GiB."""
    served = TrainingPlan(
        "vllm",
        find_language_model("Llama-3.1-8B"),
        weights=Precision.BF16,
        compute=Precision.BF16,
        serving=Serving(context_tokens=8192),
    )
    assert estimate_plan(served).worst.activations == GIB


def test_a_serving_engine_fills_its_share_of_the_gpu() -> None:
    served = TrainingPlan(
        "vllm",
        find_language_model("Llama-3.1-8B"),
        weights=Precision.BF16,
        compute=Precision.BF16,
        serving=Serving(context_tokens=8192, reserve_share=0.9, batched_tokens=2048),
    )
    found = estimate_plan(served, gpu_bytes=80 * GIB)
    assert found.worst.total == pytest.approx(0.9 * 80 * GIB, rel=0.05)
    assert estimate_plan(served).high_share > found.high_share


def test_quantised_weights_are_a_quarter() -> None:
    plan = TrainingPlan(
        "hf", find_language_model("Llama-2-7B"), weights=Precision.BF16, compute=Precision.BF16, adapter=Adapter(10**7)
    )
    small = replace(plan, weights=Precision.NF4_DOUBLE)
    assert estimate_plan(small).worst.weights < 0.31 * estimate_plan(plan).worst.weights


def test_what_an_adapter_keeps_depends_on_what_it_trains() -> None:
    """A scale on every linear layer keeps what each puts out: two bytes for each of 64 thousand numbers per token."""
    llama = find_language_model("Llama-2-7B")
    plan = TrainingPlan(
        "litgpt", llama, 1, 1000, weights=Precision.BF16, compute=Precision.BF16, adapter=Adapter(10**6, dropout=False)
    )
    scaled = replace(plan, adapter=Adapter(10**6, dropout=False, scales=True))
    outputs = 4 * 4096 + 2 * 11008 + 4096
    assert kept(scaled, 0) - kept(plan, 0) == pytest.approx(32 * 1000 * (2 * outputs + 8 * 4096), rel=0.01)


def test_activations_on_the_host_leave_a_few_layers() -> None:
    deep = replace(GPT, layers=50)
    plan = TrainingPlan("torchtune", deep, 2, 512, compute=Precision.BF16, logit_bytes=0.0)
    assert kept(replace(plan, offload_activations=True), 0) < 0.15 * kept(plan, 0)


def test_state_space_layers_keep_no_scores() -> None:
    hybrid = replace(GPT, blocks="M*-M")
    plan = TrainingPlan("megatron", hybrid, 2, 512, compute=Precision.BF16, attention=Attention.EAGER, logit_bytes=0.0)
    mixers = replace(plan, model=replace(hybrid, blocks="MMMM"))
    longer = [kept(replace(one, sequence=8192), 0) / kept(one, 0) for one in (plan, mixers)]
    assert longer[1] == pytest.approx(16)
    assert longer[0] > 20


def test_blocks_of_shorter_batches_are_reserved_and_not_allocated() -> None:
    plan = TrainingPlan(
        "hf", find_language_model("Llama-2-7B"), 1, 4096, weights=Precision.BF16, adapter=Adapter(10**6)
    )
    varying = replace(plan, cached_loss=1.5)
    full, more = (estimate_plan(one).worst for one in (plan, varying))
    assert full.tensors == more.tensors
    loss = 4096 * 32_000 * plan.logit_bytes
    assert reserved_bytes(varying, more) - reserved_bytes(plan, full) == pytest.approx(1.5 * loss, rel=0.001)


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 5), st.integers(0, 5))
def test_stages_share_all_layers_in_order(layers: int, stages: int, outer: int, last: int) -> None:
    assume(outer + last <= layers and stages > (outer > 0) + (last > 0))
    parallel = Parallelism(pipeline=stages, first_stage_layers=outer, last_stage_layers=last)
    plan = TrainingPlan("megatron", replace(GPT, layers=layers), parallel=parallel)
    parts = [stage_layers(plan, stage) for stage in range(stages)]
    assert [layer for part in parts for layer in part] == list(range(layers))
    assert not outer or len(parts[0]) == outer
    assert not last or len(parts[-1]) == last
    between = [len(part) for part in parts[bool(outer) : stages - bool(last)]]
    assert max(between) - min(between) <= 1


def test_other_models_weights_are_held_whole_and_an_engine_takes_its_share() -> None:
    plan = TrainingPlan("hf", GPT, weights=Precision.BF16, compute=Precision.BF16, logit_bytes=0.0)
    alone, beside = (estimate_plan(one).worst for one in (plan, replace(plan, beside_bytes=3.0 * GIB)))
    assert beside.weights - alone.weights == 3 * GIB
    shared = replace(plan, engine_share=0.25)
    weights = 2 * GPT.parameters()
    assert estimate_plan(shared).worst.temporary - alone.temporary == pytest.approx(weights, abs=2)
    assert estimate_plan(shared, gpu_bytes=80 * GIB).worst.temporary - alone.temporary == pytest.approx(20 * GIB, abs=2)


def test_an_engine_that_sleeps_has_the_gpu_in_its_turn_alone() -> None:
    plan = TrainingPlan("verl", GPT, weights=Precision.BF16, compute=Precision.BF16, logit_bytes=0.0)
    alone = estimate_plan(plan, gpu_bytes=80 * GIB).worst.total
    awake = replace(plan, engine_share=0.5)
    asleep, on_the_host = replace(awake, engine_sleeps=True), replace(awake, engine_sleeps=True, engine_alone=True)
    totals = [estimate_plan(each, gpu_bytes=80 * GIB).worst.tensors for each in (awake, asleep, on_the_host)]
    kept = estimate_plan(plan).worst.weights + estimate_plan(plan).worst.optimizer
    assert totals[1] == pytest.approx(40 * GIB + kept + plan.workspace_bytes, rel=1e-6)
    assert totals[2] == pytest.approx(40 * GIB + plan.workspace_bytes, rel=1e-6)
    assert alone < totals[2] < totals[1] < totals[0]


def test_a_quantised_head_is_small_to_hold_and_unpacked_to_use() -> None:
    llama = find_language_model("Llama-2-7B")
    plan = TrainingPlan("litgpt", llama, weights=Precision.NF4, compute=Precision.BF16, adapter=Adapter(10**6))
    held, small = (estimate_plan(one).worst for one in (plan, replace(plan, quantised_head=True)))
    assert held.weights - small.weights == pytest.approx(llama.embedding * (2 - 0.5625), rel=1e-6)
    assert small.temporary - held.temporary == pytest.approx(2 * 2 * 4096 * (32_000 - 11_008), rel=1e-6)


def test_eight_bit_products_keep_less_and_parts_computed_again_nothing() -> None:
    plan = TrainingPlan("megatron", GPT, 2, 512, weights=Precision.BF16, compute=Precision.BF16, logit_bytes=0.0)
    inputs = 2 * GPT.hidden + GPT.ffn  # two norms' and the activation's outputs; the kernel keeps attention's itself
    eight = kept(replace(plan, input_bytes=1.0), 0)
    assert kept(plan, 0) - eight == pytest.approx(4 * 1024 * (inputs - GPT.hidden), rel=1e-6)
    norms = kept(replace(plan, again=frozenset({"norms"})), 0)
    assert kept(plan, 0) - norms == pytest.approx(4 * 1024 * 2 * 2 * GPT.hidden, rel=1e-6)


def test_values_that_are_views_keep_the_whole_product() -> None:
    plan = TrainingPlan("litgpt", GPT, 1, 1000, compute=Precision.BF16, logit_bytes=0.0)
    joint = kept(replace(plan, joint_qkv=True), 0) - kept(plan, 0)
    assert joint == pytest.approx(4 * 1000 * 2 * 2 * GPT.hidden, rel=1e-6)


def test_a_prompt_s_pass_and_a_full_cache_are_two_moments() -> None:
    llama = find_language_model("Llama-3.1-8B")
    plan = TrainingPlan("transformers", llama, weights=Precision.BF16, compute=Precision.BF16, logit_bytes=0.0)
    long_prompt = replace(plan, serving=Serving(context_tokens=8192, prompt_tokens=8191))
    long_answer = replace(plan, serving=Serving(context_tokens=8192, prompt_tokens=1))
    first, last = estimate_plan(long_prompt).worst, estimate_plan(long_answer).worst
    assert first.temporary > 0.5 * GIB > 20 * last.temporary
    assert last.activations == GIB


@pytest.fixture(scope="module")
def errors_by_source() -> dict[str, list[float]]:
    root = os.environ.get("KOPT_DATA_DIR")
    folder = Path(root) / "memory" if root else None
    if folder is None or not (folder / "megatron_golden_memory.csv.gz").exists():
        message = "KOPT_DATA_DIR does not name a folder with memory/megatron_golden_memory.csv.gz"
        if os.environ.get("KOPT_REQUIRE_DATA") == "1":
            pytest.fail(message)
        pytest.skip(message)
    errors: dict[str, list[float]] = defaultdict(list)
    for run in read_memory_runs(folder).runs:
        answer = formula_of_run(run) if run.measured else None
        if answer is not None and run.measured:
            plan, parts = answer
            amount = parts.total if run.metric in (None, AllocationKind.PROCESS) else parts.tensors
            if run.metric is AllocationKind.RESERVED:
                amount = reserved_bytes(plan, parts)
            errors[run.source].append(abs(math.log(amount / run.measured)))
    return errors


@pytest.mark.parametrize(
    ("source", "runs", "median", "ninth"),
    [
        ("NVIDIA/Megatron-LM", 650, 0.03, 0.11),
        ("Lightning-AI/litgpt", 50, 0.03, 0.07),
        ("QwenLM/Qwen", 80, 0.12, 0.27),
        ("huggingface/peft", 50, 0.09, 0.16),
        ("QwenLM/Qwen3", 150, 0.03, 0.06),
        ("modelscope/ms-swift", 90, 0.08, 0.25),
    ],
)
def test_formulas_stay_near_measured_runs(
    errors_by_source: dict[str, list[float]], source: str, runs: int, median: float, ninth: float
) -> None:
    """Medians and ninth deciles of whole sources, as measured when formulas were written, with room for rounding."""
    errors = sorted(errors_by_source[source])
    assert len(errors) >= runs
    assert errors[len(errors) // 2] <= median
    assert errors[9 * len(errors) // 10] <= ninth
