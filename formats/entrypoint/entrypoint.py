"""What was found to run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kopt.core.reason import Reason

_MORE_MAY_RUN = frozenset({"SEVERAL", "BRANCHES", "NO_FILE", "DEFAULT", "IMAGE_ENTRYPOINT"})
"""Codes of reasons."""


class EntrypointError(ValueError):
    """Nothing to run was found, or the input is too large or malformed; the message says what to give instead."""


class Kind(StrEnum):
    """What the entrypoint is: a file, a module (``python -m``), source text (``python -c``), a notebook or a tool."""

    SCRIPT = "script"
    MODULE = "module"
    CODE = "code"
    NOTEBOOK = "notebook"
    TOOL = "tool"


@dataclass(frozen=True)
class Entrypoint:
    """One thing to run.

    ``script`` is the path of a script or notebook, the module's name, the source text or the tool's executable, after
    ``kind``. ``env`` holds what the command itself sets. ``launcher`` started the processes (``torchrun``, …);
    ``world_size`` is their number over all ``nodes``, None where it depends on the machine. ``trainer`` names the
    tool whose arguments can be read without running anything (see ``formats.trainers``) and ``config`` its file;
    ``launcher_config`` is the launcher's own (accelerate's). ``unknown`` says what could not be told.
    ``folders`` are those that the command enters before (``cd``), one after the other, ``-`` the one before; they
    may not exist.
    ``default_processes``: ``world_size`` is the launcher's default, or a process per GPU, not what the command says.
    """

    kind: Kind
    script: str
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    launcher: str | None = None
    world_size: int | None = None
    nodes: int = 1
    trainer: str | None = None
    config: str | None = None
    launcher_config: str | None = None
    launcher_arguments: tuple[str, ...] = ()
    unknown: tuple[Reason, ...] = ()
    default_processes: bool = False
    folders: tuple[str, ...] = ()

    @property
    def states_processes(self) -> bool:
        """Whether the command alone decides how many processes there are.

        It does not where a default counts that operators set otherwise (``PET_NPROC_PER_NODE``), nor where more may run
        than what is read here: a second program, a branch of a shell, a file, or what the image puts in front.
        """
        return not self.default_processes and not any(reason.code in _MORE_MAY_RUN for reason in self.unknown)
