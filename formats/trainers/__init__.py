"""Trainers' and servers' arguments and configuration files as plans whose memory can be computed.

Mappings in, ``core.training.TrainingPlan`` out; files are read and decoded by the caller.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from kopt.core.training import PlanError, TrainingPlan
from kopt.formats.entrypoint import Entrypoint
from kopt.formats.trainers.deepspeed import deepspeed_plan
from kopt.formats.trainers.fields import key, of_words
from kopt.formats.trainers.finetuning import axolotl_plan, llamafactory_plan, swift_plan
from kopt.formats.trainers.fsdp_qlora import fsdp_qlora_plan
from kopt.formats.trainers.litgpt import litgpt_plan
from kopt.formats.trainers.megatron import megatron_plan
from kopt.formats.trainers.preferences import METHODS
from kopt.formats.trainers.serving import generation_plan, sglang_plan, tgi_plan, vllm_plan
from kopt.formats.trainers.torchtitan import torchtitan_plan
from kopt.formats.trainers.torchtune import torchtune_plan
from kopt.formats.trainers.transformers import Surroundings, hf_plan

__all__ = ["TRAINERS", "Load", "generation_plan", "read_plan"]

Load = Callable[[str], Mapping[str, Any] | None]
"""The decoded content of a YAML, JSON or TOML file by the path that a command names, None where there is none."""

TRAINERS = ("megatron", "deepspeed", "torchtune", "torchtitan", "litgpt", "llamafactory", "axolotl", "hf", "ms-swift",
            "fsdp-qlora", "vllm", "sglang", "tgi")  # fmt: skip
_DIALECTS = {"hf": hf_plan, "llamafactory": llamafactory_plan, "axolotl": axolotl_plan, "ms-swift": swift_plan}
_OWN = {"torchtune": torchtune_plan, "torchtitan": torchtitan_plan, "litgpt": litgpt_plan,
        "fsdp-qlora": fsdp_qlora_plan}  # fmt: skip
_SERVERS = {"vllm": vllm_plan, "sglang": sglang_plan, "tgi": tgi_plan}
_MODEL_NAMES = ("model_name_or_path", "base_model", "model", "model_path", "model_id", "checkpoint_dir", "model_name")


def read_plan(
    entrypoint: Entrypoint,
    load: Load,
    *,
    trainer: str | None = None,
    world_size: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> TrainingPlan:
    """The plan of what ``entrypoint`` runs. ``trainer`` and ``world_size`` win over the entrypoint's own.

    ``settings`` are what the script itself sets (``entrypoint.read_script``), weaker than its arguments. A model
    that is not well known needs a ``config.json`` that ``load`` finds in the folder the arguments name.

    Raises:
        PlanError: no such trainer, or too little to make a plan of; the message says what to give.
    """
    chosen = trainer or entrypoint.trainer
    if chosen not in TRAINERS:
        raise PlanError(f"no formulas for {chosen or 'this script'}; known trainers: {', '.join(TRAINERS)}")
    given = {**(settings or {}), **_from_file(entrypoint, load), **of_words(entrypoint.arguments)}
    if chosen == "hf":
        given.setdefault("trl_method", _method_of_script(entrypoint.script))
    world = world_size or entrypoint.world_size
    if chosen == "megatron":
        return megatron_plan(given, world_size=world)
    model = _model_config(given, load)
    if chosen in _SERVERS:
        return _SERVERS[chosen](given, model_config=model)
    if chosen in _OWN:
        return _OWN[chosen](given, model_config=model, world_size=world)
    deepspeed = _deepspeed(given, entrypoint, load)
    if chosen == "deepspeed":
        return deepspeed_plan(given, config=deepspeed, model_config=model, world_size=world)
    accelerate = load(entrypoint.launcher_config) if entrypoint.launcher_config else None
    return _DIALECTS[chosen](given, around=Surroundings(deepspeed, accelerate, model), world_size=world)


def _method_of_script(script: str) -> str:
    """TRL's examples are named by what they do: ``dpo.py``, ``grpo_agent.py``."""
    stem = PurePosixPath(script).stem.lower()
    return next((name for name in METHODS if re.search(rf"(^|_){name}(_|$)", stem)), "")


def _from_file(entrypoint: Entrypoint, load: Load) -> dict[str, Any]:
    """The configuration file's settings; DeepSpeed's is not the trainer's own."""
    if entrypoint.config is None or entrypoint.trainer == "deepspeed":
        return {}
    content = load(entrypoint.config)
    if content is None:
        raise PlanError(f"the configuration {entrypoint.config[:200]} cannot be read; give it beside the command")
    return {key(str(name)): value for name, value in content.items()}


def _deepspeed(given: Mapping[str, Any], entrypoint: Entrypoint, load: Load) -> Mapping[str, Any] | None:
    named = given.get("deepspeed") or given.get("deepspeed_config")
    if entrypoint.trainer == "deepspeed" and entrypoint.config:
        named = entrypoint.config
    if isinstance(named, Mapping):
        return named
    if not isinstance(named, str) or not named:
        return None
    if named in ("zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload"):
        device = {"device": "cpu"} if "offload" in named else {}
        return {"zero_optimization": {"stage": int(named[4]), "offload_optimizer": device}, "bf16": {"enabled": True}}
    content = load(named)
    if content is None:
        raise PlanError(f"DeepSpeed's configuration {named[:200]} cannot be read; give it beside the command")
    return content


def _model_config(given: Mapping[str, Any], load: Load) -> Mapping[str, Any] | None:
    """The model's own configuration where its name is a folder that holds one."""
    words = given.get("")
    named = [given.get(name) for name in _MODEL_NAMES] + (words[:2] if isinstance(words, list) else [])
    for value in named:
        if isinstance(value, str) and value:
            found = load(f"{value.rstrip('/')}/config.json")
            if found is not None:
                return found
    return None
