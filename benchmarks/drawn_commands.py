"""Training commands that public repositories publish, drawn by a rule, through the readers that users go through.

Of checkouts in the folder ``KOPT_DRAWN_DIR`` (``owner+name``), none of which is stored here. The rule: documents
(``.md``, ``.rst``) and shell scripts of at most 64 KiB; a candidate is a script, or one fenced block of a document, with a
line that launches training by its words; of each repository the ``PER_REPOSITORY`` with the smallest hash of
repository, path and number of the block. Commands are read where they lie and, where that fails, from the root.
"""

import collections
import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kopt.core.workload.sizing import SizingEstimate

FOLDER = "KOPT_DRAWN_DIR"
PER_REPOSITORY = 3
_LARGEST_BYTES = 64 << 10
_FENCED = re.compile(r"^[ \t]*```[ \t]*(?:bash|sh|shell|console|zsh)?[ \t]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
_STARTS = re.compile(
    r"\b(?:torchrun|accelerate launch|deepspeed|torch\.distributed\.(?:run|launch)|composer|xtuner|nemo|python3?|srun)\b"
)
_TRAINS = re.compile(r"(?i)train|fine-?tun|sft|dpo|ppo|grpo|rlhf|lora")
_DOES_NOT = re.compile(
    r"(?i)(?:eval|infer|preproc|prepar|convert|tokeni[sz]|generat|demo|test|merg|download|export|serve|chat|predict)\w*\.py"
    r"|pip3? install|-m pytest"
)


@dataclass(frozen=True)
class Drawn:
    """A command as it stands, and the folder of its checkout in which it lies."""

    repository: str
    path: str
    command: str


def candidates(root: Path) -> Iterator[tuple[str, str]]:
    """Hash and path#number with the text, of every candidate of one checkout."""
    for file in sorted(root.rglob("*")):
        if file.suffix not in (".md", ".rst", ".sh") or not file.is_file() or file.stat().st_size > _LARGEST_BYTES:
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        name = str(file.relative_to(root))
        blocks = [text] if file.suffix == ".sh" else _FENCED.findall(text)
        for number, block in enumerate(blocks):
            if launches(block):
                yield f"{name}#{number}", name if file.suffix == ".sh" else block


def launches(block: str) -> bool:
    """Whether a line of it, continued ones joined, starts training by its words."""
    lines = re.sub(r"\\\r?\n", " ", block).splitlines()
    lines = [line for line in lines if not line.lstrip().startswith("#")]
    return any(_STARTS.search(line) and _TRAINS.search(line) and not _DOES_NOT.search(line) for line in lines)


def drawn(root: Path) -> list[Drawn]:
    """The commands of one checkout that the rule takes."""
    repository = root.name.replace("+", "/", 1)
    found = sorted(candidates(root), key=lambda each: hashlib.sha256(f"{repository}:{each[0]}".encode()).hexdigest())
    return [Drawn(repository, path.rpartition("#")[0], command) for path, command in found[:PER_REPOSITORY]]
