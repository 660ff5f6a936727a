"""The trainers: each saves in its own way."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "trainers"


@dataclass(frozen=True)
class Way:
    """``arguments`` stand before the folder, the seconds of a step and the steps from one save to the next."""

    name: str
    about: str
    program: str = "loop.py"
    arguments: tuple[str, ...] = ()

    def command(self, python: str, folder: str, step_s: float, every: int) -> Iterator[str]:
        yield from (python, "-u", str(PROGRAMS / self.program), *self.arguments, folder, str(step_s), str(every))


WAYS = (
    Way("announced", "torch.save, a line before and one after", arguments=("announced",)),
    Way("silent", "torch.save without a line", arguments=("silent",)),
    Way("begun", "a line before, none after", arguments=("begun",)),
    Way("ended", "a line after, none before", arguments=("ended",)),
    Way("parts", "“Model saved” before the optimizer is", arguments=("parts",)),
    Way("background", "a thread writes; lines at its start and end", arguments=("async",)),
    Way("background-begun", "a thread writes; a line at its start", arguments=("async_begun",)),
    Way("best", "one file, written again whenever it is better", arguments=("best",)),
    Way("atomic", "safetensors, renamed when it is whole", arguments=("atomic",)),
    Way("ranks", "two ranks, each with its part and lines", "ranks.py", ("shards",)),
    Way("dcp", "two ranks, torch.distributed.checkpoint", "ranks.py", ("dcp",)),
    Way("trainer", "Trainer of transformers as it is", "hugging_face.py"),
    Way("lightning", "ModelCheckpoint of Lightning, silent", "lightning_fit.py"),
    Way("accelerate", "save_state of accelerate, its own lines", "accelerate_loop.py"),
)
