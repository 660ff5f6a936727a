"""Repositories that pre-train models of their own: nanochat, Meta Lingua and lit-llama."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from formats.trainers_files import FILES

from kopt.core.workload.training_plan import PlanError, Precision, Sharding, TrainingPlan
from kopt.formats.entrypoint import what_runs
from kopt.formats.trainers import processes_of, read_plan
from kopt.models.sizing.analytic import estimate_plan
from kopt.models.sizing.estimate import EstimateOptions, read_code

BASE = "torchrun --standalone --nproc_per_node=8 -m scripts.base_train --"
LINGUA = "torchrun --nproc-per-node 8 -m apps.main.train config=lingua.yaml"


def plan(command: str, files: Mapping[str, Mapping[str, Any]] = FILES) -> TrainingPlan:
    entrypoint = what_runs(command, lambda _: None)
    return read_plan(entrypoint, files.get, world_size=processes_of(entrypoint, files.get))


def tensors_gib(result: TrainingPlan) -> float:
    return int(estimate_plan(result).worst.tensors) / (1 << 30)


def messages(result: TrainingPlan) -> str:
    return " ".join(reason.message for reason in result.unknown)


@pytest.mark.parametrize(("depth", "weights"), [(12, 286_261_730), (26, 1_681_790_292)])
def test_nanochat_s_depth_says_how_many_weights_there_are(depth: int, weights: int) -> None:
    # https://lzwjava.github.io/nanochat-training-summary-and-status-en, huggingface.co/carlosaguayo/nanochat-d26
    assert plan(f"{BASE} --depth={depth}").model.parameters() == pytest.approx(weights, rel=1e-4)


def test_nanochat_s_published_memory() -> None:
    # An RTX 4070 with gradients accumulated (lzwjava.github.io), and dev/LOG.md's table of depth 12 on 8 H100.
    alone = "python -m scripts.base_train --depth=12 --device-batch-size=8 --total-batch-size=65536 --window-pattern=L"
    assert tensors_gib(plan(alone)) == pytest.approx(9.4, rel=0.1)
    assert tensors_gib(plan(f"{BASE} --depth=12")) == pytest.approx(34e9 / (1 << 30), rel=0.1)
    # dev/LOG.md: "by ~9GB" at depth 26; dev/LEADERBOARD.md: 32 sequences are too many there.
    deep = f"{BASE} --depth=26 --device-batch-size=16"
    saved = tensors_gib(plan(deep)) - tensors_gib(plan(f"{deep} --fp8"))
    assert saved == pytest.approx(9e9 / (1 << 30), rel=0.2)
    assert tensors_gib(plan(deep)) < 79 < tensors_gib(plan(f"{BASE} --depth=26"))


def test_nanochat_holds_embeddings_in_the_precision_of_activations() -> None:
    half, whole = plan(f"{BASE} --depth=12"), plan(f"NANOCHAT_DTYPE=float32 {BASE} --depth=12")
    assert (half.weights, half.ends, half.parallel.sharding) == (Precision.FP32, Precision.BF16, Sharding.OPTIMIZER)
    assert (whole.compute, whole.ends) == (Precision.FP32, Precision.FP32)
    assert whole.gradient_bytes == pytest.approx(4, rel=0.01)
    assert half.gradient_bytes == pytest.approx((4 * 110 + 2 * 176) / 286, rel=0.01)
    assert half.state_bytes_each == pytest.approx((4 * 85 + 8 * 25 + 4 * 176) / 286, rel=0.01)
    assert plan("python -m scripts.base_train --depth=12").parallel.sharding is Sharding.NONE


def test_nanochat_s_options_are_taken_as_argparse_does_and_never_lost() -> None:
    short = plan(f"{BASE} --depth 24 --device-batch 16 --max-seq-len=1024")
    assert (short.micro_batch, short.sequence, short.accumulation) == (16, 1024, 8)
    wrong = plan(f"{BASE} --depth 24 --device-batch-sise=16")
    assert wrong.micro_batch == 32
    assert "no option --device_batch_sise: is --device_batch_size meant?" in messages(wrong)
    with pytest.raises(PlanError, match=r"no multiple of the 524,288 tokens of one pass"):
        plan(f"{BASE} --total-batch-size=100000")


def test_nanochat_s_fine_tuning_needs_its_checkpoint_s_depth() -> None:
    command = "torchrun --nproc_per_node=8 -m scripts.chat_sft -- --run=dummy"
    assert plan(f"{command} --model-tag=d24").model.layers == 24
    for words in ("", " --max-seq-len=1024", " --device-batch-size=2"):
        noted = {reason.numbers["setting"] for reason in plan(f"{command} --model-tag=d24{words}").unknown}
        given = words.partition("=")[0].strip(" -").replace("-", "_")
        assert noted >= {"model_tag", "device_batch_size", "max_seq_len"} - {given}
        assert given not in noted
    for refused in (command, f"{command} --model-tag=mine"):
        with pytest.raises(PlanError, match="--model-tag d24"):
            plan(refused)
    with pytest.raises(PlanError, match=r"chat_rl has no formulas; give scripts\.base_train"):
        plan("python -m scripts.chat_rl")


def test_nanochat_s_options_with_underscores_are_of_a_version_with_more_tokens() -> None:
    older, newer = plan(f"{BASE} --depth=20 --device_batch_size=32"), plan(f"{BASE} --depth=20 --run=my_run")
    assert (older.model.vocab, newer.model.vocab) == (65_536, 32_768)
    assert tensors_gib(older) > tensors_gib(newer) + 5
    assert "65,536 tokens" in messages(older)
    assert plan("python -m scripts.chat_sft --model_tag=d20").micro_batch == 4
    with pytest.raises(PlanError, match=r"no formulas"):
        plan("python -m scripts.mid_train --device_batch_size=8 --model_tag=d20")


def test_nanochat_s_precision_is_noted_where_it_is_detected() -> None:
    assert "NANOCHAT_DTYPE is not set" in messages(plan(BASE))
    assert "NANOCHAT_DTYPE" not in messages(plan(f"NANOCHAT_DTYPE=float16 {BASE}"))
    for word in ("int4", "bf16", "''"):
        with pytest.raises(PlanError, match=r"NANOCHAT_DTYPE .* is none of bfloat16, float16, float32"):
            plan(f"NANOCHAT_DTYPE={word} {BASE}")


def test_lingua_s_model_and_mesh() -> None:
    result = plan(LINGUA)
    assert (result.model.ffn, result.model.vocab, result.parallel.shard_ranks) == (5632, 128_256, 8)
    assert "128,256 tokens by the name of the tokenizer" in messages(result)
    groups = plan(f"{LINGUA} distributed.dp_shard=4 model.n_layers=4")
    assert (groups.parallel.shard_ranks, groups.parallel.data, groups.model.layers) == (4, 8, 4)
    assert plan(f"{LINGUA} distributed.fsdp_type=no_shard").parallel.shard_ranks == 1
    assert plan(f"{LINGUA} distributed.tp_size=0").parallel.tensor == 1
    assert plan(f"{LINGUA} model.head_dim=64 model.n_heads=null").model.heads == 32
    with pytest.raises(PlanError, match=r"dp_shard 3 x tp_size 1; give --world-size"):
        plan(f"{LINGUA} distributed.dp_shard=3")


def test_lingua_keeps_gathered_weights_and_whole_gradients_of_several_passes() -> None:
    passes, alone = plan(f"{LINGUA} grad_acc_steps=4"), plan(f"{LINGUA} distributed.fsdp_type=no_shard")
    whole = plan(LINGUA).model.parameters()
    assert plan(LINGUA).gather_numbers == whole
    assert (passes.buffer_bytes, alone.buffer_bytes) == (4 * whole, 2 * whole)
    one = plan(f"{LINGUA} distributed.fsdp_type=no_shard".replace("node 8", "node 1"))
    assert tensors_gib(alone) == tensors_gib(one), "no buckets of DistributedDataParallel"


def test_lingua_s_own_launcher_counts_its_nodes() -> None:
    command = "python -m lingua.stool script=apps.main.train config=lingua.yaml nodes=2 account=mine"
    assert plan(command).parallel.data == 16
    assert plan(f"{command} ngpu=4").parallel.data == 8


@pytest.mark.parametrize(
    ("model", "command", "problem"),
    [
        ({"state_dim": 128}, LINGUA, "Mamba"),
        ({"n_heads": None}, LINGUA, r"give it or model\.head_dim"),
        ({"n_future_head": 3}, LINGUA, "several heads"),
        ({}, f"{LINGUA} data.tokenizer.path=mine.model", "give model.vocab_size"),
        ({}, "python -m lingua.stool script=apps.main.eval config=lingua.yaml", "apps.main.eval does not train"),
        ({}, f"{LINGUA} distributed.fsdp_type=some", "neither full_shard nor no_shard"),
        ({}, f"{LINGUA} distributed.dp_shard=16", "give --world-size, a multiple of 16"),
        ({}, f"{LINGUA} model.n_heads=null", r"give it or model\.head_dim"),
        ({}, "torchrun --nproc-per-node 8 apps/main/eval.py config=lingua.yaml", r"apps/main/eval\.py does not train"),
        ({}, "torchrun lingua/apps/main/generate.py config=lingua.yaml", r"generate\.py does not train"),
        ({}, "python -m lingua.stool config=lingua.yaml nodes=2 model.dim=4096", "stool has no setting model.dim"),
    ],
)
def test_what_lingua_s_formulas_do_not_know_is_refused(model: Mapping[str, Any], command: str, problem: str) -> None:
    own = FILES["lingua.yaml"]
    files = {**FILES, "lingua.yaml": {**own, "model": {**own["model"], **model}}}
    with pytest.raises(PlanError, match=problem):
        plan(command, files)


@pytest.mark.parametrize(
    ("script", "options", "gib", "shape"),
    [
        # README.md and howto/: one RTX 3090 of 24 GB; four A100 of 40 GB.
        ("finetune/lora.py", "--data_dir data", 24, (1, 4, 256)),
        ("finetune/adapter.py", "", 24, (1, 4, 256)),
        ("finetune/adapter_v2.py", "--out_dir out", 24, (1, 4, 256)),
        ("finetune/full.py", "", 40, (4, 4, 512)),
        ("pretrain/redpajama.py", "--devices 4 --train_data_dir data/lit-redpajama", 40, (4, 5, 2048)),
    ],
)
def test_lit_llama_s_scripts_fit_where_its_documents_say(
    script: str, options: str, gib: int, shape: tuple[int, int, int]
) -> None:
    result = plan(f"python lit-llama/{script} {options}")
    assert (result.parallel.world, result.micro_batch, result.sequence) == shape
    assert int(estimate_plan(result, gpu_bytes=gib << 30).worst.total) < gib << 30


def test_lit_llama_s_constants_are_read() -> None:
    files = {"lit-llama/finetune/lora.py": {"micro_batch_size": 16, "max_seq_length": 512, "lora_r": 32, "wd": {}}}
    changed = plan("python lit-llama/finetune/lora.py", files)
    assert (changed.micro_batch, changed.sequence) == (16, 512)
    assert changed.adapter is not None
    assert changed.adapter.rank == 32
    assert "LLaMA 7B" in messages(changed)
    assert plan("python lit-llama/pretrain/redpajama.py --devices 8").parallel.world == 8
    shakespeare = plan(
        "python lit-llama/pretrain/shakespeare.py", {"lit-llama/pretrain/shakespeare.py": {"batch_size": 3}}
    )
    assert (shakespeare.micro_batch, shakespeare.weights, shakespeare.accumulation) == (3, Precision.FP32, 1)
    with pytest.raises(PlanError, match=r"lit-llama/evaluate/lora\.py does not train; give finetune/lora\.py"):
        plan("python lit-llama/evaluate/lora.py")


def test_a_script_that_imports_its_package_is_lit_llama_s(tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text("from lit_llama.model import LLaMA\ndevices = 3\n", encoding="utf-8")
    (tmp_path / "own.py").write_text("import torch\n", encoding="utf-8")

    def processes(command: str) -> int:
        # Read and not run, as if its packages were not installed.
        options = EstimateOptions(folder=tmp_path, trainer="lit-llama")
        return read_code(command, settings=None, options=options).world_size

    assert (processes("python full.py"), processes("python own.py")) == (3, 1)
