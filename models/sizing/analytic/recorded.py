"""Plans of recorded runs, so that formulas can be held against what was measured and their residual learned.

Each source tells its settings in its own words; what a source does not tell is set as its published scripts do.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.units import Bytes
from kopt.core.workload.language_models import find_language_model
from kopt.core.workload.sizing import MemoryBreakdown
from kopt.core.workload.training_plan import Adapter, ModelShape, PlanError, Precision, TrainingPlan
from kopt.data.memory.table import MemoryRun
from kopt.formats.trainers.finetuning import swift_plan
from kopt.formats.trainers.litgpt import in_litgpt, litgpt_plan
from kopt.formats.trainers.megatron.trainer import megatron_plan
from kopt.formats.trainers.names import adapter
from kopt.formats.trainers.recipe import Recipe
from kopt.formats.trainers.serving import generation_plan
from kopt.formats.trainers.transformers import Surroundings, hf_plan
from kopt.models.sizing.analytic.estimate import estimate_plan

_MEGATRON_GPUS, _GB200_NODE_GPUS = 8, 4
"""Megatron-LM's functional tests run on eight GPUs; those limited to a single node have the four of a GB200."""


def plan_of_run(run: MemoryRun) -> TrainingPlan | None:
    """The plan of a recorded run of a language model, None for other sources and runs that lack settings.

    Nothing is learned from dimensions that are derived from a size.
    """
    reader = _READERS.get(run.source)
    if reader is None:
        return None
    try:
        plan = reader(run)
    except PlanError:
        return None
    return None if plan is None or plan.model.doubt > 1 else plan


def formula_of_run(run: MemoryRun) -> tuple[TrainingPlan, MemoryBreakdown] | None:
    """A recorded run's plan and the formulas' answer for the process that was measured.

    Megatron-LM's log is that of the last rank, so of the last pipeline stage; sums over GPUs are sums over stages.
    """
    plan = plan_of_run(run)
    if plan is None:
        return None
    analytic_estimate = estimate_plan(plan, gpu_bytes=_usable_bytes(run.gpu))
    if not run.per_gpu:
        return plan, _sum(analytic_estimate.per_stage)
    return plan, analytic_estimate.per_stage[-1] if plan.framework == "megatron" else analytic_estimate.worst


def _usable_bytes(gpu: str) -> int | None:
    try:
        return int(find_gpu(gpu.rstrip("?")).usable_bytes)
    except UnknownGpuError:
        return None


def _sum(parts: tuple[MemoryBreakdown, ...]) -> MemoryBreakdown:
    return MemoryBreakdown(
        *(Bytes(sum(getattr(part, field.name) for part in parts)) for field in fields(MemoryBreakdown))
    )


def _whole(run: MemoryRun, name: str, default: int) -> int:
    value = run.arguments.get(name)
    try:
        return default if value is None or value == "" else int(float(value))
    except (TypeError, ValueError, OverflowError):
        return default


def _text(run: MemoryRun, name: str) -> str:
    return str(run.arguments.get(name, ""))


def _megatron(run: MemoryRun) -> TrainingPlan:
    arguments = {name: value for name, value in run.arguments.items() if name.startswith("--")}
    single_node = run.gpu.startswith("gb200") and ("_1node" in run.name or "_1N4G" in run.name)
    return megatron_plan(arguments, world_size=_GB200_NODE_GPUS if single_node else _MEGATRON_GPUS)


_LITGPT_COMMANDS = {"Adapter": "finetune_adapter", "Adapter v2": "finetune_adapter_v2", "LoRA": "finetune_lora"}


def _litgpt(run: MemoryRun) -> TrainingPlan:
    # "phi-1.5 1.3 B" and "Llama 2 7 B" are names of one table: a size stands last, also where the name has it.
    model, method = _text(run, "model").replace("phi-1.5 1.3 B", "phi-1.5"), _text(run, "method")
    quantised = _text(run, "quant")
    if "inference" in method:
        generated = {"model": model, "quantization": quantised, "dtype": "bf16", "new_tokens": 50}
        return in_litgpt(generation_plan(generated))
    kind = method.removeprefix("Finetuning with ").partition(" on ")[0]
    arguments: dict[str, Any] = {
        "": [_LITGPT_COMMANDS.get(kind, "finetune_lora"), model],
        "precision": "bf16-true",
        "train.micro_batch_size": _whole(run, "micro_batch", 1),
        "train.max_seq_length": _whole(run, "seq_len", 1024),
    }
    return litgpt_plan(arguments | ({"quantize": quantised} if quantised else {}), world_size=run.gpus)


def _swift(run: MemoryRun) -> TrainingPlan:
    try:
        other: Mapping[str, Any] = json.loads(_text(run, "other"))
    except ValueError:
        other = {}
    bits = {"int4": 4, "int8": 8}.get(_text(run, "quant")[:4])
    model = _text(run, "model").partition(" (")[0]
    parts = re.search(r"sequence_parallel_size=(\d)", str(other.get("hyper", "")))
    # Before sequences were split, only Qwen's own code had a flash path; others were computed whole in any case.
    flash = other.get("flash_attn") != "✘" and (model.startswith("qwen") or parts is not None)
    arguments: dict[str, Any] = {
        "model": model,
        "train_type": _text(run, "method"),
        "max_length": _whole(run, "seq_len", 2048),
        "per_device_train_batch_size": _whole(run, "micro_batch", 1),
        "lora_rank": other.get("lora_rank") or 8,
        "gradient_checkpointing": _text(run, "grad_ckpt") not in ("False", "✘"),
        "attn_impl": "flash_attn" if flash else "eager",
        "target_modules": "DEFAULT" if other.get("target") in (None, "", "DEFAULT") else "all-linear",
        "device_map": "" if parts else "auto",
        "sequence_parallel_size": int(parts[1]) if parts else 1,
        "quant_method": "gptq" if "gptq" in _text(run, "quant") else "bnb",
    }
    return swift_plan(arguments | ({"quantization_bit": bits} if bits else {}), world_size=run.gpus)


def _qwen_finetuning(run: MemoryRun) -> TrainingPlan:
    """Qwen's finetune.py, which pads to the full length: ZeRO 3 for full fine-tuning, ZeRO 2 for Q-LoRA, else none.

    Its model code does not cast logits itself. Automatic casts do where there is no DeepSpeed; under it the loss is
    taken in 16 bits: the logits, their shifted copy and the softmax.
    """
    method = _text(run, "method")
    arguments: dict[str, Any] = {
        "model_name_or_path": _text(run, "model"),
        "max_seq_length": _whole(run, "seq_len", 1024),
        "bf16": True,
        "per_device_train_batch_size": _whole(run, "micro_batch", 1),
        "gradient_checkpointing": True,
        "gradient_accumulation_steps": 8,
        "torch_dtype": "bf16",
        "pad_to_max_length": True,
    }
    if "LoRA" in method:
        arguments |= {"lora_rank": 64, "target_modules": "c_attn,attn.c_proj,w1,w2"}
    if "emb" in method:
        arguments["modules_to_save"] = "wte,lm_head"
    if "Q-LoRA" in method:
        arguments |= {"quantization_bit": 4, "quant_method": "gptq"}
    stage = 3 if "Full" in method or "Zero3" in method else 2 if "Q-LoRA" in method else 0
    if not stage:
        return replace(hf_plan(arguments, world_size=run.gpus), logit_bytes=14.0)
    sizes = {"overlap_comm": True, "reduce_bucket_size": 2e8 if stage == 2 else "auto"}
    zero = {"zero_optimization": {"stage": stage, **sizes}, "bf16": {"enabled": True}}
    return replace(hf_plan(arguments, around=Surroundings(deepspeed=zero), world_size=run.gpus), logit_bytes=6.0)


def _peft(run: MemoryRun) -> TrainingPlan | None:
    if _text(run, "task") not in ("", "MetaMathQA"):
        return None  # pictures: no language model
    model = find_language_model(_text(run, "model_id"))
    trained = _whole(run, "num_trainable_params", 0)
    full = trained > model.parameters() // 2
    low_rank = None if full or not trained else _peft_adapter(run, model, trained)
    # A trained prompt stands before every sequence: as many more tokens as it has vectors.
    prompt = trained // model.hidden if _text(run, "peft_type") == "PROMPT_TUNING" else 0
    recipe = Recipe(
        "hf",
        model,
        _whole(run, "batch_size", 1),
        _whole(run, "max_seq_length", 768) + prompt,
        optimizer="adamw_fused",
        adapter=low_rank,
        checkpointing=_text(run, "use_gc") == "True",
    )
    return replace(recipe, weights=Precision.BF16).plan()


def _peft_adapter(run: MemoryRun, model: ModelShape, trained: int) -> Adapter:
    """Methods that train a matrix on the inputs of their targets keep those in 32 bits; others' ways are many."""
    rank = max(1, _whole(run, "r", 8))
    targets = re.findall(r"[a-z]+_proj", _text(run, "target_modules"))
    if not targets or _text(run, "peft_type") not in ("LORA", "DELORA", "GRALORA", "RANDLORA"):
        return Adapter(trained, rank, dropout=False)
    return replace(adapter(model, rank, targets, dropout=False), trainable=trained, copy_bytes=4.0)


def _qwen_inference(run: MemoryRun) -> TrainingPlan:
    """Qwen3's tables show what is held while words follow: nothing above weights and cache grows with the prompt."""
    prompt, new = max(1, _whole(run, "input_len", 1)), _whole(run, "gen_len", 2048)
    if _text(run, "model").startswith("Qwen3"):
        prompt, new = 1, prompt + new - 1
    arguments = {
        "model": _text(run, "model"),
        "quantization": _text(run, "quant").replace("GPTQ-Int8", "int8"),
        "dtype": "bf16",
        "prompt_tokens": prompt,
        "new_tokens": new,
    }
    return generation_plan(arguments, gpus=run.gpus)


_READERS: Mapping[str, Callable[[MemoryRun], TrainingPlan | None]] = {
    "NVIDIA/Megatron-LM": _megatron,
    "Lightning-AI/litgpt": _litgpt,
    "modelscope/ms-swift": _swift,
    "QwenLM/Qwen": _qwen_finetuning,
    "huggingface/peft": _peft,
    "QwenLM/Qwen3": _qwen_inference,
}
