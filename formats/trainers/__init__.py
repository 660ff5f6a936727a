"""Trainers' and servers' arguments and configuration files as plans whose memory can be computed.

Mappings in, ``core.workload.training_plan.TrainingPlan`` out; files are read and decoded by the caller.
``trainers.TRAINERS`` lists what is supported.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kopt.core.workload.training_plan import PlanError, TrainingPlan
from kopt.formats.trainers.fields import key, settings_of_arguments
from kopt.formats.trainers.serving import generation_plan
from kopt.formats.trainers.trainer import Command, Load, PlanInputs, Trainer
from kopt.formats.trainers.trainers import TRAINERS, trainer_of

_TRAINERS_OWN = frozenset({"model_name_or_path", "per_device_train_batch_size", "output_dir", "learning_rate"})
_MOST_WORDS = 1000
_SETTING = re.compile(r"[A-Za-z_][\w.]*=")

__all__ = ["TRAINERS", "Load", "generation_plan", "processes_of", "read_plan"]


def read_plan(
    entrypoint: Command,
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
    name = trainer or entrypoint.trainer
    config, own_file = entrypoint.config, None
    by_source = name == "hf" and entrypoint.trainer is None and bool(settings)
    if (name in (None, "deepspeed") or by_source) and (
        recognised := _by_its_file(entrypoint.arguments, load)
    ) is not None:
        # DeepSpeed's own file stays behind its option.
        name, own_file = recognised
        config = own_file
    selected = trainer_of(name)
    if selected is None:
        names = ", ".join(supported.name for supported in TRAINERS)
        raise PlanError(f"no formulas for {name or 'this script'}; known trainers: {names}")
    return selected.plan(_inputs(entrypoint, load, settings or {}, world_size, config, own_file=own_file is not None))


def _by_its_file(arguments: Sequence[str], load: Load) -> tuple[str, str] | None:
    """The trainer whose settings a script's own file holds, and the file: ``sft.py --config recipe.yaml``."""
    for word in arguments[:_MOST_WORDS]:
        path = word.rpartition("=")[2] if word.startswith("-") or _SETTING.match(word) else word
        if path.endswith((".yaml", ".yml", ".json")):
            content = load(path)
            if content is None:
                continue
            if len(_TRAINERS_OWN & content.keys()) > 1:
                return "hf", path
            named = next((trainer.name for trainer in TRAINERS if trainer.recognises(content)), None)
            if named is not None:
                return named, path
    return None


def processes_of(entrypoint: Command, load: Load) -> int | None:
    """How many processes with a GPU each there are, by the launcher's or the trainer's own arguments and defaults.

    None where it depends on the machine, or where they cannot be read.
    """
    selected = trainer_of(entrypoint.trainer)
    if entrypoint.world_size is not None:
        return entrypoint.world_size
    if entrypoint.launcher_config and (launched := _launched(load(entrypoint.launcher_config) or {})):
        return launched
    if selected is None or selected.processes is None:
        return None
    try:
        return selected.processes(_inputs(entrypoint, load, {}, None, entrypoint.config))
    except PlanError:
        return None


def _launched(accelerate: Mapping[str, Any]) -> int | None:
    """The processes that accelerate's file says, where its command does not."""
    number = accelerate.get("num_processes")
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 < number <= 1 << 16 else None


def _inputs(
    entrypoint: Command,
    load: Load,
    settings: Mapping[str, Any],
    world_size: int | None,
    config: str | None,
    *,
    own_file: bool = False,
) -> PlanInputs:
    recognised = trainer_of(entrypoint.trainer)
    has_deepspeeds = recognised is not None and recognised.config_is_deepspeeds and not own_file
    own = {} if has_deepspeeds else _from_file(config, load, recognised)
    # What a word without a value stands for is the script's to say (``store_false``).
    words = settings_of_arguments(entrypoint.arguments)
    stated = {name: value for name, value in words.items() if value is not True or name not in settings}
    return PlanInputs(
        {**settings, **own, **stated},
        load,
        world_size or entrypoint.world_size,
        entrypoint.script,
        config if has_deepspeeds else None,
        entrypoint.launcher_config,
        entrypoint.env,
        entrypoint.nodes if world_size in (None, entrypoint.world_size) else None,
        tuple(entrypoint.arguments),
    )


def _from_file(path: str | None, load: Load, trainer: Trainer | None) -> dict[str, Any]:
    """The settings of a configuration: a file, or one that comes with the trainer."""
    if path is None:
        return {}
    content = load(path)
    if content is None and trainer is not None:
        content = trainer.configs(path)
    if content is None:
        raise PlanError(f"the configuration {path[:200]} cannot be read; give it beside the command")
    return {key(str(name)): value for name, value in content.items()}
