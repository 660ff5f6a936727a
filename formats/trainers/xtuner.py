"""XTuner's training configurations (https://xtuner.readthedocs.io): mmengine's, in Python or by a built-in name.

What a model is made of stands in ``model``, batches in ``train_dataloader``, precision and optimizer in
``optim_wrapper``; its own are known by name (XTuner b934f46, Apache-2.0; ``scripts/xtuner_configs.py``).
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from kopt.core.workload.training_plan import Adapter, PlanError, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.recipe import Recipe
from kopt.formats.trainers.trainer import PlanInputs, Trainer
from kopt.formats.trainers.transformers import Surroundings, hf_recipe

_VISION_NUMBERS = {"clip-vit-large": 304_000_000, "siglip-so400m": 428_000_000, "internvit-6b": 5_540_000_000}
"""Of encoders, by a part of their names, from their repositories on the hub."""
_OTHER_VISION = 304_000_000
_VISION_WIDTH = 1024
_BASES, _UNREAD = "_base_", "_unread_"
"""Files that a configuration builds on, and names of what it computes, as ``formats.python_config`` gives them."""
_DECIDE = (
    "model llm lora llm_lora r target_modules modules_to_save quantization_config load_in_4bit load_in_8bit "
    "torch_dtype quantization_llm bnb_4bit_use_double_quant use_activation_checkpointing attn_implementation "
    "visual_encoder freeze_llm freeze_visual_encoder train_dataloader dataset train_dataset batch_size max_length "
    "pack_to_max_length optim_wrapper optimizer dtype accumulative_counts sequence_parallel_size"
)
"""Names of what decides memory in a configuration."""
_COPY = "kopt_copy_of"
_TRAINERS = ("TrainerConfig", "RLColocateTrainerConfig")
_V1 = "configurations of XTuner V1 have no formulas; give one of `xtuner train`, or run the script"
_METHODS = {"DPO": "dpo", "ORPO": "orpo", "RewardModel": "reward"}


def xtuner_plan(
    settings: Mapping[str, Any], *, around: Surroundings | None = None, world_size: int | None = None
) -> TrainingPlan:
    """The plan of one configuration, with ``--cfg-options`` on top by their dotted names.

    Raises:
        PlanError: no model is named, it is not known, or parts that have no formulas.
    """
    fields = Fields(settings)
    around = around or Surroundings()
    _refuse_others(fields)
    words = _in_transformers_words(fields, sharded=around.deepspeed is not None)
    read = Fields(words)
    if fields.has(_COPY):
        read.assume("config", f"{fields.text(_COPY)[:100]} cannot be read: taken as the built-in that its name has")
    unread = sorted(set(_DECIDE.split()).intersection(fields.name_list(_UNREAD)))
    if unread:
        # As a script's defaults: each of them may be anything.
        names = ", ".join(unread)[:200]
        read.assume("config", f"{names}: only running the configuration would tell; taken as if they were not given")
    recipe = hf_recipe("xtuner", read, around, world_size)
    return _with_vision(recipe, fields, read).plan()


def _refuse_others(fields: Fields) -> None:
    kind = fields.text("trainer.type").rpartition(".")[2]
    if kind in _TRAINERS or fields.text("model.type").endswith("Config"):
        raise PlanError(_V1)
    if names := ", ".join(fields.name_list(_BASES))[:100]:
        # Whatever stands there (a quantised model, an adapter) is not in this file.
        raise PlanError(f"the configuration builds on {names}, which is not read; give one that says all of it")


def _in_transformers_words(fields: Fields, *, sharded: bool) -> dict[str, Any]:
    """What the configuration says in the names that transformers' trainer has for it."""
    llm = "model.llm"
    vision = fields.has("model.visual_encoder", "model.model_path")
    half = fields.text("optim_wrapper.dtype", default="float16")
    amp = "Amp" in fields.text("optim_wrapper.type") or sharded
    low_rank = "model.lora" if fields.has("model.lora") else "model.llm_lora"
    adapts = fields.has(low_rank) and not _is_nothing(fields, low_rank)
    quantised = f"{llm}.quantization_config" if fields.has(llm) else "model.quantization_config"
    words: dict[str, Any] = {
        "model_name_or_path": _model_name(fields),
        "per_device_train_batch_size": fields.whole("train_dataloader.batch_size", "batch_size", default=1),
        "gradient_accumulation_steps": fields.whole("optim_wrapper.accumulative_counts", default=1),
        "max_length": _length(fields),
        # Pictures have a length of their own beside the text's.
        "packing": fields.flag("pack_to_max_length", "train_dataloader.dataset.pack_to_max_length") and not vision,
        "sequence_parallel_size": fields.whole("sequence_parallel_size", default=1),
        "gradient_checkpointing": fields.flag("model.use_activation_checkpointing", default=True),
        "optim": fields.text("optim_wrapper.optimizer.type", default="AdamW"),
        "bf16": amp and half == "bfloat16",
        "fp16": amp and half != "bfloat16",
        "load_in_4bit": fields.flag(f"{quantised}.load_in_4bit", "model.quantization_llm"),
        "load_in_8bit": fields.flag(f"{quantised}.load_in_8bit"),
        "bnb_4bit_use_double_quant": fields.flag(f"{quantised}.bnb_4bit_use_double_quant", "model.quantization_llm"),
        "attn_implementation": fields.text(f"{llm}.attn_implementation", default="flash_attention_2"),
        "trl_method": _METHODS.get(fields.text("model.type").rpartition(".")[2], ""),
        # With flash attention, which it requires for most models, it loads weights in 16 bits (SupervisedFinetune).
        "torch_dtype": fields.text(f"{llm}.torch_dtype", default="bfloat16").rpartition(".")[2],
    }
    if adapts:
        targets = fields.name_list(f"{low_rank}.target_modules")
        words |= {
            "use_peft": True,
            "lora_r": fields.whole(f"{low_rank}.r", default=8),
            "lora_dropout": fields.real(f"{low_rank}.lora_dropout", default=0.0),
            "lora_target_modules": targets or ["all-linear"],
            "modules_to_save": fields.name_list(f"{low_rank}.modules_to_save"),
        }
        if not sharded and not words["load_in_4bit"] and not words["load_in_8bit"]:
            # prepare_model_for_kbit_training casts all that is not quantised, here everything, to 32 bits.
            words["torch_dtype"] = "float32"
    return words


def _is_nothing(fields: Fields, name: str) -> bool:
    return isinstance(fields.raw(name), str) and fields.text(name).lower() in ("none", "")


def _model_name(fields: Fields) -> str:
    names = (
        "model.llm.pretrained_model_name_or_path",
        "model.pretrained_model_name_or_path",
        "model.model_path",
        "pretrained_model_name_or_path",
        "llm_name_or_path",
    )
    return fields.text(*names)


def _length(fields: Fields) -> int:
    names = ("train_dataloader.dataset.max_length", "max_length", "train_dataset.max_length")
    length = fields.whole(*names, default=0)
    return length or 2048


def _with_vision(recipe: Recipe, fields: Fields, read: Fields) -> Recipe:
    """An encoder of pictures and its projector beside the language model, of which parts may be frozen."""
    if not fields.has("model.visual_encoder"):
        return recipe
    name = fields.text("model.visual_encoder.pretrained_model_name_or_path").lower()
    numbers = next((count for part, count in _VISION_NUMBERS.items() if part in name), 0)
    if not numbers:
        numbers = _OTHER_VISION
        read.assume(
            "visual_encoder", f"the encoder {name[:60]!r} is taken to have {numbers:,} numbers, as CLIP's large"
        )
    frozen = fields.flag("model.freeze_visual_encoder")
    each = 2.0 if frozen or recipe.adapter is not None else 16.0
    recipe = replace(recipe, beside=recipe.beside + each * numbers, unknown=read.unknown)
    read.assume("visual_encoder", "what the encoder of pictures keeps for its backward pass is not counted")
    if not fields.flag("model.freeze_llm") or recipe.adapter is not None:
        return recipe
    # Only the projector is trained: two layers from the encoder's width to the model's.
    projector = (_VISION_WIDTH + recipe.model.hidden) * recipe.model.hidden
    return replace(recipe, adapter=Adapter(projector, rank=1, targets=0, dropout=False))


@cache
def configurations() -> dict[str, dict[str, Any]]:
    # As torchtune's: no installed package can be imported where strangers' sources are read.
    import orjson

    kept = orjson.loads(files(__package__).joinpath("xtuner_configs.json").read_bytes())
    return {name: each["settings"] for each in kept for name in each["names"]}


def _plan(inputs: PlanInputs) -> TrainingPlan:
    fields = Fields(inputs.settings)
    if re.search(r"\bv1\b", inputs.script):
        raise PlanError(_V1)
    words = [*fields.positional(), *fields.name_list("config")]
    behind = fields.name_list("deepspeed")
    words += behind[1:]
    if words[:1] and words[0] in ("chat", "convert", "list-cfg", "copy-cfg", "log-dataset", "test", "mmbench"):
        raise PlanError(f"xtuner {words[0]} does not train; give xtuner train and its configuration")
    named = next((word for word in words if word not in ("train", "pytorch", "slurm", "mpi")), None)
    if named is None:
        raise PlanError("no configuration is named; give xtuner train and a file or a built-in name")
    settings = inputs.load(named) if named.endswith(".py") else configurations().get(named)
    copied = named.rpartition("/")[2].removesuffix("_copy.py")
    if settings is None and named.endswith("_copy.py") and copied in configurations():
        # What `xtuner copy-cfg` makes of a built-in name, before anybody edits it.
        settings = {**configurations()[copied], _COPY: named}
    if settings is None:
        raise PlanError(f"the configuration {named[:200]} cannot be read; give it beside the command")
    stage = behind[0].removeprefix("deepspeed_") if behind else ""
    own = {**inputs.settings, "deepspeed": stage}
    document = replace(inputs, settings=own).deepspeed() if stage else None
    if document is not None and not behind[0].endswith(".json"):
        half = "bf16" if Fields(settings).text("optim_wrapper.dtype") == "bfloat16" else "fp16"
        document = {"zero_optimization": document["zero_optimization"], half: {"enabled": True}}
    model = inputs.load(f"{_model_name(Fields(settings)).rstrip('/')}/config.json")
    around = Surroundings(document, None, model)
    return xtuner_plan({**settings, **own}, around=around, world_size=inputs.world_size)


TRAINER = Trainer(
    "xtuner",
    _plan,
    commands=("xtuner",),
    modules=("xtuner.",),
    folders=("xtuner",),
    processes=PlanInputs.started,
)
