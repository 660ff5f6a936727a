"""Commands and configurations that trainers publish, unmodified, through the readers that users go through.

Of checkouts in the folder ``KOPT_PUBLISHED_DIR``: LLaMA-Factory, axolotl, ms-swift, litgpt, torchtune, OpenRLHF, verl
and DeepSpeedExamples, each under its repository's name. Nothing of them is stored here. Shown: how many are answered,
why the others are not, and, where an example's comments say what a GPU held, how far the estimate is from it.
"""

import collections
import contextlib
import math
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import markdown
from kopt.cli.script_arguments import command_of
from kopt.core.units import GIB
from kopt.core.workload.sizing import SizingEstimate
from kopt.models.sizing.assembly import refusal
from kopt.models.sizing.estimate import EstimateOptions, estimate_and_code

FOLDER = "KOPT_PUBLISHED_DIR"
_GPU = "a100-80gb"
_MEMORY = re.compile(r"^#.*?(\d{1,3}(?:\.\d+)?) ?(?:GiB|GB)\b", re.MULTILINE)
_TRAINS = re.compile(r"^\s*(?:swift|megatron) (?:sft|pt|rlhf)\b", re.MULTILINE)
_PACKS = re.compile(r"--packing true")
_CARDS = {24.0, 32.0, 40.0, 48.0, 80.0, 96.0}
"""Figures that name a GPU rather than what was used of it."""


@dataclass(frozen=True)
class Example:
    """A published command, and what its comments say that a GPU held (GiB; 0 where they do not)."""

    command: str
    gib: float = 0.0
    packs: bool = False


def _llamafactory(root: Path) -> Iterator[Example]:
    for file in sorted(root.glob("examples/**/*.yaml")):
        text = file.read_text(encoding="utf-8")
        if "stage:" in text and re.search(r"^do_train: true", text, re.MULTILINE | re.IGNORECASE):
            yield Example(f"llamafactory-cli train {file.relative_to(root)}")


def _axolotl(root: Path) -> Iterator[Example]:
    for file in sorted(root.glob("examples/**/*.y*ml")):
        if re.search(r"^base_model:", file.read_text(encoding="utf-8"), re.MULTILINE):
            yield Example(f"axolotl train {file.relative_to(root)}")


def _swift(root: Path) -> Iterator[Example]:
    for file in sorted(root.glob("examples/**/*.sh")):
        text = file.read_text(encoding="utf-8")
        if _TRAINS.search(text) and "ascend" not in file.parts:
            stated = {float(gib) for gib in _MEMORY.findall(text)}
            gib = stated.pop() if len(stated) == 1 else 0.0
            yield Example(str(file.relative_to(root)), 0.0 if gib in _CARDS else gib, bool(_PACKS.search(text)))


def _litgpt(root: Path) -> Iterator[Example]:
    for file in sorted(root.glob("config_hub/**/*.yaml")):
        verb = "pretrain" if "pretrain" in file.parts else "finetune_full" if file.stem == "full" else "finetune_lora"
        yield Example(f"litgpt {verb} --config {file.relative_to(root)}")


def _torchtune(root: Path) -> Iterator[Example]:
    for file in sorted(root.glob("recipes/configs/**/*.yaml")):
        if re.search(r"^optimizer:", file.read_text(encoding="utf-8"), re.MULTILINE):
            yield Example(f"tune run full_finetune_single_device --config {file.relative_to(root)}")


def _openrlhf(root: Path) -> Iterator[Example]:
    for file in sorted(root.glob("examples/scripts/train_*.sh")):
        yield Example(str(file.relative_to(root)))


def _verl(root: Path) -> Iterator[Example]:
    for file in sorted(root.glob("examples/**/*.sh")):
        if "npu" not in file.name and re.search(r"main_ppo|sft_trainer", file.read_text(encoding="utf-8")):
            yield Example(str(file.relative_to(root)))


def _deepspeed_chat(root: Path) -> Iterator[Example]:
    for file in sorted(root.glob("applications/DeepSpeed-Chat/training/step*/training_scripts/**/*.sh")):
        yield Example(str(file.relative_to(root)))


SOURCES: dict[str, Callable[[Path], Iterator[Example]]] = {
    "LLaMA-Factory": _llamafactory,
    "axolotl": _axolotl,
    "ms-swift": _swift,
    "litgpt": _litgpt,
    "torchtune": _torchtune,
    "OpenRLHF": _openrlhf,
    "verl": _verl,
    "DeepSpeedExamples": _deepspeed_chat,
}


def main() -> int:
    folder = os.environ.get(FOLDER)
    if not folder:
        print(f"set {FOLDER} to a folder with checkouts of {', '.join(SOURCES)}", file=sys.stderr)
        return 0
    for name, examples in SOURCES.items():
        root = Path(folder).resolve() / name
        if root.is_dir():
            _report(name, root, list(examples(root)))
    return 0


def _report(name: str, root: Path, examples: list[Example]) -> None:
    answers = [_answer(example, root) for example in examples]
    refused = [answer for answer in answers if isinstance(answer, str)]
    print(f"{name}: {len(examples) - len(refused)} of {len(examples)} answered")
    for reason, count in collections.Counter(refused).most_common(12):
        print(f"  {count} x {reason}")
    pairs = [
        (example, answer)
        for example, answer in zip(examples, answers, strict=True)
        if example.gib and isinstance(answer, SizingEstimate)
    ]
    if pairs:
        rows = [_compared("packed to the full length", [pair for pair in pairs if pair[0].packs])]
        rows.append(_compared("batches of unknown length", [pair for pair in pairs if not pair[0].packs]))
        print(
            markdown(("what a GPU held, by the comments", "n", "median ratio", "median error", "inside", "above"), rows)
        )


def _answer(example: Example, root: Path) -> SizingEstimate | str:
    """The estimate as somebody in the checkout gets it, or why there is none."""
    options = EstimateOptions(_GPU, timeout_s=20)
    try:
        with contextlib.chdir(root):
            command = command_of(example.command, [])
            made, _ = estimate_and_code(command, model="shipped", settings=None, options=options)
    except (ValueError, OSError) as error:
        return str(error)[:110]
    reason = refusal(made)
    return made if reason is None else reason.message[:110]


def _compared(label: str, pairs: list[tuple[Example, SizingEstimate]]) -> tuple[str, ...]:
    ratios = [(made.memory.value or 0) / (example.gib * GIB) for example, made in pairs]
    ends = [((made.memory.low or 0) / GIB, example.gib, (made.memory.high or 0) / GIB) for example, made in pairs]
    return (
        label,
        str(len(pairs)),
        f"{statistics.median(ratios):.2f}",
        f"{statistics.median(abs(math.log(ratio)) for ratio in ratios):.0%}",
        f"{sum(low <= gib <= high for low, gib, high in ends) / len(ends):.0%}",
        f"{sum(gib > high for _, gib, high in ends) / len(ends):.0%}",
    )


if __name__ == "__main__":
    sys.exit(main())
