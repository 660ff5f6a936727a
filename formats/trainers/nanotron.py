"""nanotron (https://github.com/huggingface/nanotron): one YAML with the model's configuration, degrees and tokens.

Defaults are those of ``src/nanotron/config/parallelism_config.py`` (huggingface/nanotron 19f88fb): whole activations on
every tensor-parallel rank (ALL_REDUCE), and all micro-batches forward before the first goes backward (afab), which
``src/nanotron/parallel/pipeline_parallel/engine.py`` does with one stage too.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.workload.language_models import shape_of_config
from kopt.core.workload.training_plan import PlanError, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.megatron.trainer import megatron_plan
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "": "bf16"}


def nanotron_plan(settings: Mapping[str, Any], *, world_size: int | None = None) -> TrainingPlan:
    """The plan of one configuration: weights in 16 bits, gradients and masters in 32, ZeRO-1 over the data ranks.

    Raises:
        PlanError: a dimension is missing, or sizes do not divide each other.
    """
    fields = Fields(settings)
    config = fields.raw("model.model_config")
    if not isinstance(config, Mapping):
        raise PlanError("model.model_config is not given; it has the model's dimensions, so give it")
    if fields.text("model.model_config.is_mamba_config") in ("True", "true"):
        raise PlanError("state-space models of nanotron have no formulas; run the script instead")
    dtype = _DTYPES.get(fields.text("model.dtype"))
    if dtype is None:
        raise PlanError(
            f"model.dtype {fields.text('model.dtype')[:40]!r} is none of {', '.join(filter(None, _DTYPES))}"
        )
    degrees = {name: max(1, fields.whole(f"parallelism.{name}", default=1)) for name in ("dp", "tp", "pp")}
    context = max(1, fields.whole("parallelism.context_parallel_size", default=1))
    mode = _named(fields, "parallelism.tp_mode", ("ALL_REDUCE", "REDUCE_SCATTER"))
    engine = _named(fields, "parallelism.pp_engine", ("AFAB", "1F1B"))
    words = {
        "tensor_model_parallel_size": degrees["tp"],
        "pipeline_model_parallel_size": degrees["pp"],
        "context_parallel_size": context,
        "expert_model_parallel_size": max(1, fields.whole("parallelism.expert_parallel_size", default=1)),
        "micro_batch_size": fields.whole("tokens.micro_batch_size"),
        "seq_length": fields.whole("tokens.sequence_length"),
        dtype: True,
        "grad_reduce_in_bf16": not fields.flag("optimizer.accumulate_grad_in_fp32", default=True),
        "use_distributed_optimizer": fields.whole("optimizer.zero_stage", default=0) > 0,
        "sequence_parallel": mode == "REDUCE_SCATTER",
        "recompute_granularity": "full" if fields.flag("parallelism.recompute_layer") else "",
        "hidden_dropout": 0,
        "attention_dropout": 0,
        # Plain PyTorch with flash attention: none of Transformer Engine's workspaces.
        "transformer_impl": "local",
        "use_flash_attn": True,
    }
    world = world_size or degrees["dp"] * degrees["tp"] * degrees["pp"] * context
    steps = fields.whole("tokens.batch_accumulation_per_replica", default=1)
    data = world // max(1, degrees["tp"] * degrees["pp"] * context)
    words["global_batch_size"] = words["micro_batch_size"] * max(1, steps) * max(1, data)
    plan = megatron_plan(words, model=shape_of_config(config, "nanotron model"), world_size=world)
    return replace(plan, framework="nanotron", backward_last=engine == "AFAB", unknown=(*plan.unknown, *fields.unknown))


def _named(fields: Fields, name: str, known: tuple[str, str]) -> str:
    """One of two words in capitals, the first where none is given. Raises PlanError for another."""
    word = fields.text(name).upper()
    if word in ("NONE", "NULL", ""):
        return known[0]
    if word not in known:
        raise PlanError(f"{name} {word[:40]!r} is neither {known[0]} nor {known[1]}; give one of them")
    return word


def _plan(inputs: PlanInputs) -> TrainingPlan:
    return nanotron_plan(inputs.settings, world_size=inputs.world_size)


def _processes(inputs: PlanInputs) -> int | None:
    fields = Fields(inputs.settings)
    names = ("dp", "tp", "pp", "context_parallel_size")
    sizes = [max(1, fields.whole(f"parallelism.{name}", default=1)) for name in names]
    return sizes[0] * sizes[1] * sizes[2] * sizes[3] if fields.has("parallelism") else None


TRAINER = Trainer(
    "nanotron",
    _plan,
    modules=("nanotron.",),
    script=re.compile(r"run_train\.py"),
    folders=("nanotron",),
    config_options=("--config-file", "--config_file", "--config"),
    recognises=lambda content: {"parallelism", "tokens", "model"} <= content.keys(),
    processes=_processes,
)
