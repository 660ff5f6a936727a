"""torchtune, torchtitan and litgpt: trainers with model code of their own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.training import ModelShape, PlanError, Precision, Sharding, Style, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.models import model_of
from kopt.formats.trainers.names import adapter, precision
from kopt.formats.trainers.recipe import Recipe

_LITGPT_TARGETS = (("lora_query", "q_proj", True), ("lora_key", "k_proj", False), ("lora_value", "v_proj", True),
                   ("lora_projection", "o_proj", False))  # fmt: skip
_CHUNKED_LOSS = 7.0
"""16-bit logits of all chunks and their 32-bit softmax, and one chunk's gradients."""
_TUNE_TARGETS = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}


def torchtune_plan(
    given: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None, world_size: int | None = None
) -> TrainingPlan:
    """A torchtune recipe's configuration with its overrides.

    Raises:
        PlanError: the model is not known, or a value that cannot be.
    """
    fields = Fields(given)
    component = fields.text("model._component_", "model._component", "model")
    model = _tune_model(component, model_config)
    words = fields.raw("")
    kind = " ".join(map(str, words)) if isinstance(words, list) else ""
    low_rank = "lora" in component or "lora" in kind
    loss = fields.text("loss._component_", "loss")
    packed = fields.flag("dataset.packed")
    if not packed:
        fields.assume("dataset.packed", "batches of varying length are taken to reach the longest that is allowed")
    recipe = Recipe(
        framework="torchtune",
        model=model,
        micro_batch=fields.whole("batch_size", default=2),
        sequence=_length(fields, "tokenizer.max_seq_len", "max_seq_len"),
        accumulation=fields.whole("gradient_accumulation_steps", default=1),
        weights=precision(fields.text("dtype"), Precision.BF16),
        compute=precision(fields.text("dtype"), Precision.BF16),
        optimizer=_tune_optimizer(fields),
        gpus=world_size or 1,
        sharding=Sharding.PARAMETERS,
        offload_parameters=fields.flag("fsdp_cpu_offload"),
        offload_optimizer=fields.flag("fsdp_cpu_offload") or "CPUOffload" in _tune_optimizer(fields),
        checkpointing=fields.flag("enable_activation_checkpointing"),
        offload_activations=fields.flag("enable_activation_offloading"),
        style=Style.FUSED if fields.flag("compile") else Style.EAGER,
        step_in_backward=fields.flag("optimizer_in_bwd"),
        loss=_CHUNKED_LOSS if any(word in loss for word in ("Chunk", "LinearCrossEntropy")) else 14.0,
        varying=not packed and fields.has("tokenizer.max_seq_len", "max_seq_len"),
        unknown=fields.unknown,
    )
    if low_rank:
        targets = [_TUNE_TARGETS.get(name, name) for name in fields.words("model.lora_attn_modules")] or [
            "q_proj",
            "v_proj",
        ]
        if fields.flag("model.apply_lora_to_mlp"):
            targets += ["gate_proj", "up_proj", "down_proj"]
        recipe = replace(
            recipe, adapter=adapter(model, fields.whole("model.lora_rank", default=8), targets, dropout=False)
        )
    if "qlora" in component:
        recipe = replace(recipe, weights=Precision.NF4_DOUBLE)
    return recipe.plan()


def _tune_model(component: str, config: Mapping[str, Any] | None) -> ModelShape:
    """``torchtune.models.llama3_1.lora_llama3_1_8b`` names the model in its last part."""
    last = component.rpartition(".")[2].removeprefix("qlora_").removeprefix("lora_")
    name = last.replace("llama3_1", "llama-3.1").replace("llama3_2", "llama-3.2").replace("llama3_3", "llama-3.3")
    name = (
        name.replace("qwen2_5", "qwen2.5").replace("llama2", "llama-2").replace("llama3", "llama-3").replace("_", "-")
    )
    return model_of(Fields({"model": name}), config=config)


def _tune_optimizer(fields: Fields) -> str:
    name = fields.text("optimizer._component_", "optimizer", default="torch.optim.AdamW")
    return name + ("_fused" if fields.flag("optimizer.fused") else "")


def _length(fields: Fields, *names: str) -> int:
    length = fields.whole(*names, default=0)
    if not length:
        fields.assume("sequence", "the length of sequences is not given: 2048 tokens")
    return length or 2048


def torchtitan_plan(
    given: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None, world_size: int | None = None
) -> TrainingPlan:
    """A torchtitan job's TOML with its overrides (``--training.seq_len 4096``).

    Raises:
        PlanError: the model is not known, or sizes do not divide the GPUs.
    """
    fields = Fields(given)
    flavor = f"{fields.text('model.name')}-{fields.text('model.flavor')}"
    name = flavor.replace("llama3-405B", "llama-3.1-405b").replace("llama3", "llama-3.1").replace("qwen3", "qwen3")
    model = model_of(Fields({"model": name}), config=model_config)
    recompute = fields.text("activation_checkpoint.mode", default="selective")
    option = fields.text("activation_checkpoint.selective_ac_option", default="op")
    products = recompute == "selective" and option == "op"
    compiled = fields.flag("training.compile", "compile.enable")
    batch = fields.whole("training.local_batch_size", "training.batch_size", default=8)
    pipeline = fields.whole("parallelism.pipeline_parallel_degree", default=1)
    # A pipeline takes the local batch in parts.
    micro = fields.whole("parallelism.pipeline_parallel_microbatch_size", default=1) if pipeline > 1 else batch
    interleaved = "interleaved" in fields.text("parallelism.pipeline_parallel_schedule").lower()
    recipe = Recipe(
        framework="torchtitan",
        model=model,
        micro_batch=micro,
        accumulation=max(1, batch // max(1, micro)),
        sequence=_length(fields, "training.seq_len"),
        # FSDP2 keeps 32-bit shards and gathers them in 16 bits.
        weights=precision(fields.text("training.dtype"), Precision.FP32),
        compute=precision(fields.text("training.mixed_precision_param"), Precision.BF16),
        optimizer=fields.text("optimizer.name", default="AdamW") + "_fused",
        gpus=world_size or 1,
        tensor=fields.whole("parallelism.tensor_parallel_degree", default=1),
        pipeline=pipeline,
        virtual_stages=2 if interleaved else 1,
        context=fields.whole("parallelism.context_parallel_degree", default=1),
        sharding=Sharding.PARAMETERS,
        offload_parameters=fields.flag("training.enable_cpu_offload"),
        offload_optimizer=fields.flag("training.enable_cpu_offload"),
        checkpointing=recompute == "full",
        checkpoint_products=products,
        style=Style.FUSED if compiled else Style.EAGER,
        loss=10.0 if compiled else 14.0,
        unknown=fields.unknown,
    )
    if pipeline > 1 and fields.text("parallelism.fsdp_reshard_after_forward", default="default") != "always":
        recipe = _gathered_for_all_parts(recipe)
    if recompute == "selective" and not products:
        fields.assume("activation_checkpoint", "selective checkpointing of some layers is taken as none")
        recipe = replace(recipe, unknown=fields.unknown)
    return recipe.plan()


def _gathered_for_all_parts(recipe: Recipe) -> Recipe:
    """In a pipeline FSDP2 gathers weights once for all parts of a batch, and scatters gradients after the last."""
    numbers = recipe.model.parameters() / max(1, recipe.tensor * recipe.pipeline)
    return replace(recipe, gather_numbers=2.0 * recipe.model.parameters(), buffers=recipe.buffers + 4.0 * numbers)


def litgpt_plan(
    given: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None, world_size: int | None = None
) -> TrainingPlan:
    """litgpt's command and configuration: ``litgpt finetune_lora MODEL --precision bf16-true``.

    Raises:
        PlanError: the model is not known, or a value that cannot be.
    """
    fields = Fields(given)
    words = [str(word) for word in fields.raw("") or []]
    command = words[0] if words else "finetune_lora"
    gpus = world_size or fields.whole("devices", default=1)
    named = fields.text("checkpoint_dir", "model_name", default=words[1] if len(words) > 1 else "")
    model = model_of(Fields({"model": named}), config=model_config)
    held = precision(fields.text("precision").replace("bf16-mixed", "fp32").replace("16-mixed", "fp32"), Precision.BF16)
    quantised = fields.text("quantize")
    recipe = Recipe(
        framework="litgpt",
        model=model,
        micro_batch=fields.whole("train.micro_batch_size", default=1),
        sequence=_length(fields, "train.max_seq_length"),
        accumulation=2,
        weights=precision(quantised.replace("bnb.int8-training", "int8"), held) if quantised else held,
        compute=Precision.BF16 if "bf16" in fields.text("precision", default="bf16") else held,
        optimizer=fields.text("optimizer", default="AdamW"),
        gpus=gpus,
        sharding=Sharding.PARAMETERS,
        checkpointing=gpus > 1,
        loads_whole=gpus > 1 and command != "pretrain",
        loss=6.0,  # logits in chunks: themselves, their log-softmax and its gradient, all in 16 bits
        unknown=fields.unknown,
    )
    if command.endswith("lora"):
        chosen = [target for flag, target, default in _LITGPT_TARGETS if fields.flag(flag, default=default)]
        if fields.flag("lora_mlp"):
            chosen += ["gate_proj", "up_proj", "down_proj"]
        recipe = replace(recipe, adapter=adapter(model, fields.whole("lora_r", default=8), chosen))
    elif "adapter" in command:
        every = command.endswith("v2")
        low_rank = replace(adapter(model, 2, ["q_proj"], dropout=False), scales=every)
        if every:  # a bias and a scale for each number that a linear layer puts out
            low_rank = replace(low_rank, trainable=low_rank.trainable + 2 * model.layers * model.linear_outputs)
        recipe = replace(recipe, adapter=low_rank)
    elif command not in ("finetune", "finetune_full", "pretrain"):
        raise PlanError(
            f"litgpt {command[:40]} does not train; give finetune_full, finetune_lora, finetune_adapter or pretrain"
        )
    return in_litgpt(recipe.plan())


def in_litgpt(plan: TrainingPlan) -> TrainingPlan:
    """litgpt never ties a head to its embedding, and has bitsandbytes quantise the head as any other layer.

    One linear layer makes queries, keys and values.
    """
    model = replace(plan.model, tied=False)
    return replace(plan, model=model, quantised_head=plan.weights.quantised, joint_qkv=True)
