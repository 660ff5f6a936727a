"""What a trainer or server says of itself; ``trainers.TRAINERS`` lists all of them."""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

from kopt.core.workload.training_plan import PlanError, TrainingPlan

Load = Callable[[str], Mapping[str, Any] | None]
"""The decoded content of a YAML, JSON or TOML file by the path that a command names, None where there is none."""

_MODEL_NAMES = ("model_name_or_path", "base_model", "model", "model_path", "model_id", "checkpoint_dir", "model_name")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_STAGES = ("zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload")


_STAGE = re.compile(r"(?i)(?:zero|stage|_z)[_-]?([0-3])(?!\d)")
STAGE_IN_NAME = "kopt_stage_in_name"


def _stage_in_name(path: str) -> dict[str, Any] | None:
    """What a configuration that is not at hand says by its name: ``ds_zero2_no_offload.json``."""
    name = path.rpartition("/")[2]
    stage = _STAGE.search(name)
    if stage is None:
        return None
    off = re.search(r"(?i)(no[_-]?)?offload", name)
    device = {"device": "cpu"} if off is not None and not off[1] else {}
    zero = {"stage": int(stage[1]), "offload_optimizer": device}
    return {"zero_optimization": zero, "bf16": {"enabled": True}, STAGE_IN_NAME: name}


class Command(Protocol):
    """What a plan needs of the command that is run: the part of ``formats.entrypoint.Entrypoint`` that is read here."""

    @property
    def script(self) -> str: ...

    @property
    def arguments(self) -> Sequence[str]: ...

    @property
    def env(self) -> Mapping[str, str]: ...

    @property
    def world_size(self) -> int | None: ...

    @property
    def nodes(self) -> int: ...

    @property
    def trainer(self) -> str | None: ...

    @property
    def config(self) -> str | None: ...

    @property
    def launcher_config(self) -> str | None: ...


@dataclass(frozen=True)
class PlanInputs:
    """What a plan is made of: settings by name, and the files that they or the command name, read when wanted.

    ``deepspeed_file`` is DeepSpeed's configuration where the command names one itself; ``env`` what it sets.
    ``nodes`` over which the processes are spread, None where these were counted by other means than the command's.
    ``arguments`` are the command's words as they are written.
    """

    settings: Mapping[str, Any]
    load: Load
    world_size: int | None = None
    script: str = ""
    deepspeed_file: str | None = None
    launcher_config: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    nodes: int | None = 1
    arguments: tuple[str, ...] = ()

    def model_config(self) -> Mapping[str, Any] | None:
        """The model's own configuration where its name is a folder that holds one."""
        positional = self.settings.get("")
        names = [self.settings.get(name) for name in _MODEL_NAMES] + (
            positional[:2] if isinstance(positional, list) else []
        )
        for name in names:
            if isinstance(name, str) and name:
                result = self.load(f"{name.rstrip('/')}/config.json")
                if result is not None:
                    return result
        return None

    def deepspeed(self) -> Mapping[str, Any] | None:
        """DeepSpeed's configuration, None where none is used.

        Raises:
            PlanError: a file is named that cannot be read.
        """
        named = self.deepspeed_file or self.settings.get("deepspeed") or self.settings.get("deepspeed_config")
        if isinstance(named, Mapping):
            return named
        if not isinstance(named, str) or not named:
            return None
        if named in _STAGES:
            device = {"device": "cpu"} if "offload" in named else {}
            zero = {"stage": int(named[4]), "offload_optimizer": device}
            return {"zero_optimization": zero, "bf16": {"enabled": True}}
        content = self.load(named)
        if content is None and (by_name := _stage_in_name(named)) is not None:
            return by_name
        if content is None:
            raise PlanError(f"DeepSpeed's configuration {named[:200]} cannot be read; give it beside the command")
        return content

    def started(self) -> int | None:
        """``NPROC_PER_NODE`` times ``NNODES``, by which trainers start torchrun themselves; None where not set."""
        each, nodes = self.env.get("NPROC_PER_NODE", ""), self.env.get("NNODES", "")
        if each.isdigit() and len(each) < 6:
            return max(1, int(each)) * (int(nodes) if nodes.isdigit() and 0 < len(nodes) < 6 else 1)
        return None

    def visible_gpus(self) -> int:
        """Those that the command itself keeps its processes to; 0 where it names none."""
        visible = next((self.env[name] for name in _VISIBLE if self.env.get(name)), "")
        return len([part for part in visible.split(",") if part.strip()])

    def accelerate(self) -> Mapping[str, Any] | None:
        """accelerate's configuration, None where it did not start the command."""
        return self.load(self.launcher_config) if self.launcher_config else None


def _never(_: Set[str]) -> bool:
    return False


def _no_document(_: Mapping[str, Any]) -> bool:
    return False


def _nothing(_: str) -> None:
    return None


@dataclass(frozen=True)
class Trainer:
    """A trainer or server, how its command is recognised, and the plan of what it runs.

    It is recognised by its own ``commands``, by prefixes of ``modules`` that Python runs, by the name of a ``script``
    or a folder on the way to it, or, in the order of the list, by the names of ``options``. Its configuration is the
    file behind one of ``config_options`` or, where ``config_is_word``, an argument of its own. An option of
    ``config_keys`` whose value is a file says by itself that this is the trainer.
    """

    name: str
    plan: Callable[[PlanInputs], TrainingPlan]
    """Raises PlanError, which says what to give."""
    commands: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    script: "re.Pattern[str] | None" = None
    folders: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """A script of any name that imports one of them is this trainer's."""
    options: Callable[[Set[str]], bool] = _never
    config_options: tuple[str, ...] = ()
    config_is_word: bool = False
    config_is_first: bool = False
    """Such a word counts only as the first argument, or the second behind a word (``trl sft config.yaml``)."""
    config_keys: tuple[str, ...] = ()
    recognises: Callable[[Mapping[str, Any]], bool] = _no_document
    """Whether the content of a file that a script of any name is given is this trainer's."""
    configs: Callable[[str], Mapping[str, Any] | None] = _nothing
    """A configuration that comes with it, by the name that stands in place of a file."""
    config_is_deepspeeds: bool = False
    """Its file is DeepSpeed's and holds no settings of the trainer itself."""
    processes: Callable[[PlanInputs], int | None] | None = None
    """How many its own arguments start, however many GPUs there are: None in the answer where the machine decides that,
    and for a trainer whose processes a launcher starts. Raises PlanError for values that cannot be."""
