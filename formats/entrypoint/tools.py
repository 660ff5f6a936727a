"""Trainers and servers that are recognised by their command: which one it is and where its configuration lies."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from kopt.formats.entrypoint.entrypoint import Entrypoint, Kind
from kopt.formats.trainers.trainers import TRAINERS, trainer_of

_CONFIG_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
_ALWAYS_A_FILE = ("--config", "--config_file", "--job.config_file")
"""Options whose value is a file whatever its suffix."""
_HYDRAS = re.compile(r"\+{0,2}[A-Za-z_]\w*(\.\w+)+=")
"""Settings in Hydra's words, which have no dashes in front."""


def read_tool(name: str, arguments: Sequence[str]) -> Entrypoint | None:
    """The entrypoint of a tool's own command, None where no trainer has a command of that name."""
    trainer = next((trainer.name for trainer in TRAINERS if name in trainer.commands), None)
    return None if trainer is None else with_trainer(Entrypoint(Kind.TOOL, name, tuple(arguments), trainer=trainer))


def with_trainer(entrypoint: Entrypoint) -> Entrypoint:
    """Adds which trainer's arguments these are and where its configuration file is, as far as the words tell."""
    arguments = entrypoint.arguments
    name = entrypoint.trainer or _by_name(entrypoint) or _by_options(arguments)
    if name is not None:
        return replace(entrypoint, trainer=name, config=_config(name, arguments))
    for trainer in TRAINERS:
        config = _option(arguments, trainer.config_keys)
        if config is not None:
            return replace(entrypoint, trainer=trainer.name, config=config)
    return entrypoint


def _by_name(entrypoint: Entrypoint) -> str | None:
    if entrypoint.kind is Kind.MODULE:
        return next((trainer.name for trainer in TRAINERS if entrypoint.script.startswith(trainer.modules)), None)
    path = PurePosixPath(entrypoint.script)
    for trainer in TRAINERS:
        if trainer.script is not None and trainer.script.fullmatch(path.name):
            return trainer.name
    return next((trainer.name for trainer in TRAINERS if set(trainer.folders) & set(path.parts)), None)


def _by_options(arguments: Sequence[str]) -> str | None:
    names = {word.partition("=")[0] for word in arguments if word.startswith("--") or _HYDRAS.match(word)}
    return next((trainer.name for trainer in TRAINERS if trainer.options(names)), None)


def _option(arguments: Sequence[str], names: Sequence[str]) -> str | None:
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in names:
            path = value if equals else arguments[at + 1] if at + 1 < len(arguments) else None
            if path and path.endswith(_CONFIG_SUFFIXES):
                return path
            if path and not path.startswith("-") and name in _ALWAYS_A_FILE:
                return path
    return None


def _config(name: str, arguments: Sequence[str]) -> str | None:
    trainer = trainer_of(name)
    if trainer is None:
        return None
    path = _option(arguments, trainer.config_options)
    if path is not None or not trainer.config_is_word:
        return path
    # These take the file as a word of its own: ``axolotl train config.yaml``. What follows an option may be its value,
    # such as a data set in JSON, or the file behind a flag: ``axolotl train --debug config.yaml``.
    files = [
        (before, word)
        for before, word in zip(("", *arguments), arguments, strict=False)
        if word.endswith(_CONFIG_SUFFIXES)
    ]
    if trainer.config_is_first:
        # A script's other files are its data: ``train.py --data_mixture mixture.yaml``.
        first = arguments[:2] if arguments[:1] and not arguments[0].startswith("-") else ()
        return next((word for word in first if word.endswith(_CONFIG_SUFFIXES)), None)
    own = [word for before, word in files if not word.startswith("-") and not _takes_a_value(before)]
    behind = [word for _, word in files if not word.startswith("-") and word.endswith((".yaml", ".yml"))]
    return next(iter(own or behind), None)


def _takes_a_value(word: str) -> bool:
    return word.startswith("--") and "=" not in word
