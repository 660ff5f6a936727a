"""Training commands that public repositories publish, drawn by a rule, through the readers that users go through.

Of checkouts in the folder ``KOPT_DRAWN_DIR`` (``owner+name``), none of which is stored here. The rule: documents
(``.md``, ``.rst``) and shell scripts of at most 64 KiB; a candidate is a script, or one fenced block of a document,
with a line that launches training by its words; of each repository the ``PER_REPOSITORY`` with the smallest hash of
repository, path and number of the block (``KOPT_DRAWN_SKIP=3``: the next). Commands are read where they lie and, where
that fails, from the root.

The third draw is of ``THIRD_DRAW``, which was committed before any of them was opened. By a hash of its name a
repository belongs to the half that may be looked at, or to the one set apart (``KOPT_DRAWN_HALF=worked|apart``), whose
outcomes are read once before and once after everything else is done.
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

from kopt.cli.script_arguments import command_of
from kopt.core.units import GIB
from kopt.models.sizing.assembly import refusal
from kopt.models.sizing.estimate import EstimateOptions, estimate_and_code

FOLDER, SKIP, HALF = "KOPT_DRAWN_DIR", "KOPT_DRAWN_SKIP", "KOPT_DRAWN_HALF"
PER_REPOSITORY = 3
THIRD_DRAW = [
    "AetherCortex/Llama-X",
    "alibaba/ROLL",
    "allenai/OLMo-core",
    "bigcode-project/starcoder2",
    "ContextualAI/HALOs",
    "Facico/Chinese-Vicuna",
    "FreedomIntelligence/HuatuoGPT-o1",
    "GAIR-NLP/LIMO",
    "h2oai/h2o-llmstudio",
    "huggingface/nanoVLM",
    "inclusionAI/AReaL",
    "InternLM/InternEvo",
    "jingyaogong/minimind",
    "KellerJordan/modded-nanogpt",
    "LianjiaTech/BELLE",
    "linkedin/Liger-Kernel",
    "microsoft/LMOps",
    "NovaSky-AI/SkyThought",
    "NVIDIA-NeMo/RL",
    "NVlabs/VILA",
    "om-ai-lab/VLM-R1",
    "OpenBMB/MiniCPM",
    "OpenBMB/ToolBench",
    "OpenLMLab/LOMO",
    "OpenLMLab/MOSS-RLHF",
    "oumi-ai/oumi",
    "PeterGriffinJin/Search-R1",
    "PKU-Alignment/align-anything",
    "PRIME-RL/PRIME",
    "princeton-nlp/LESS",
    "princeton-nlp/LLM-Shearing",
    "princeton-nlp/MeZO",
    "project-baize/baize-chatbot",
    "RLHFlow/Online-RLHF",
    "RLHFlow/RLHF-Reward-Modeling",
    "sail-sg/understand-r1-zero",
    "simplescaling/s1",
    "tatsu-lab/alpaca_farm",
    "THUDM/slime",
    "uclaml/SPPO",
    "ymcui/Chinese-LLaMA-Alpaca",
    "ymcui/Chinese-LLaMA-Alpaca-3",
    "zjunlp/KnowLM",
]
"""Repositories that publish training of language models, none of which had been in a set or opened before."""
_GPU = "a100-80gb"
_NO_PYTHON = "/no-python"
"""Scripts are not run: what is asked is how much the command says."""
_NOT_RUN = "give the path of the Python that runs the script; "
_LARGEST_BYTES = 64 << 10
_FENCE = re.compile(r"^[ \t>]*(?:```|~~~)[ \t]*(\w*)[^\n]*$", re.MULTILINE)
_SHELLS = {"", "bash", "sh", "shell", "console", "zsh"}
_STARTS = re.compile(
    r"\b(?:torchrun|accelerate launch|deepspeed|torch\.distributed\.(?:run|launch)|composer|xtuner|nemo"
    r"|python3?|srun)\b"
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
        blocks = [text] if file.suffix == ".sh" else list(fenced(text))
        for number, block in enumerate(blocks):
            if launches(block):
                yield f"{name}#{number}", name if file.suffix == ".sh" else block


def fenced(text: str) -> Iterator[str]:
    """Blocks of a document between fences, those that name another language than a shell's left out."""
    fences = list(_FENCE.finditer(text))
    for opens, closes in zip(fences[::2], fences[1::2], strict=False):
        if opens[1].lower() in _SHELLS:
            yield text[opens.end() : closes.start()].strip("\n")


def launches(block: str) -> bool:
    """Whether a line of it, continued ones joined, starts training by its words."""
    lines = re.sub(r"\\\r?\n", " ", block).splitlines()
    lines = [line for line in lines if not line.lstrip().startswith("#")]
    return any(_STARTS.search(line) and _TRAINS.search(line) and not _DOES_NOT.search(line) for line in lines)


def drawn(root: Path, skip: int = 0) -> list[Drawn]:
    """The commands of one checkout that the rule takes, after the first ``skip`` of them."""
    repository = root.name.replace("+", "/", 1)
    ordered = sorted(candidates(root), key=lambda each: hashlib.sha256(f"{repository}:{each[0]}".encode()).hexdigest())
    return [
        Drawn(repository, path.rpartition("#")[0], command) for path, command in ordered[skip : skip + PER_REPOSITORY]
    ]


def half(repository: str) -> str:
    """Whether commands of a repository may be looked at while readers are written."""
    return "apart" if hashlib.sha256(f"third:{repository}".encode()).digest()[0] % 2 else "worked"


@dataclass(frozen=True)
class Outcome:
    """What a drawn command was answered with: the framework that was read, or why nothing was."""

    drawn: Drawn
    framework: str = ""
    reason: str = ""
    gib: float = 0.0


def outcome(root: Path, command: Drawn) -> Outcome:
    """Read in its own folder and, where that is refused, in the root of its checkout. Scripts are not run."""
    folder = (root / command.path).parent
    inside = str((root / command.path).relative_to(folder)) if command.path.endswith(".sh") else command.command
    own = _read(folder, inside, command)
    return own if own.framework or folder == root else _first(_read(root, command.command, command), own)


def _first(one: Outcome, other: Outcome) -> Outcome:
    return one if one.framework or not other.framework else other


def _read(folder: Path, line: str, command: Drawn) -> Outcome:
    options = EstimateOptions(_GPU, python=_NO_PYTHON, folder=folder)
    try:
        with contextlib.chdir(folder):
            words = command_of(line, [])
        made, result = estimate_and_code(words, model="shipped", settings=None, options=options)
    except (ValueError, OSError) as error:
        return Outcome(command, reason=str(error)[:200])
    refused = refusal(made)
    if refused is not None:
        return Outcome(command, reason=(result.problem or refused.message).rpartition(_NOT_RUN)[2][:200])
    return Outcome(command, framework=str(result.code.method), gib=(made.memory.value or 0) / GIB)


def main() -> int:
    folder = os.environ.get(FOLDER)
    if not folder:
        print(f"set {FOLDER} to a folder with checkouts named owner+name", file=sys.stderr)
        return 0
    outcomes = []
    skip = int(os.environ.get(SKIP, "0"))
    wanted = os.environ.get(HALF, "")
    for root in sorted(path for path in Path(folder).resolve().iterdir() if path.is_dir()):
        if wanted and wanted != half(root.name.replace("+", "/", 1)):
            continue
        outcomes += [outcome(root, command) for command in drawn(root, skip)]
    counts = collections.Counter(each.drawn.repository for each in outcomes)
    answered = collections.Counter(each.drawn.repository for each in outcomes if each.framework)
    for repository, count in sorted(counts.items()):
        print(f"{repository}: {answered[repository]} of {count}")
    for each in outcomes:
        print(
            f"  {each.drawn.repository} {each.drawn.path}: {f'{each.gib:.1f} GiB' if each.framework else each.reason}"
        )
    print(f"answered {sum(answered.values())} of {len(outcomes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
