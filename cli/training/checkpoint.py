"""``kopt train checkpoint``: on labelled logs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kopt.cli.output import column
from kopt.cli.training.command import TrainCommand, TrainInputs

if TYPE_CHECKING:
    from kopt.training.pipeline.protocols import Source


@dataclass(frozen=True)
class LogRow:
    """Scores of the new model on logs of frameworks it had not seen, per slice."""

    slice: str = column("slice")
    services: int = column("logs")
    macro_f1: float = column("macro-F1", show=lambda score: f"{score:.3f}")
    spans: int = column("writes")
    spans_unsafe: int = column("with a safe line")
    unguarded: float = column("lines not guarded", show=lambda share: f"{share:.1%}")
    held: float = column("wrongly held", show=lambda share: f"{share:.1%}")
    completions_seen: float = column("completions seen", show=lambda share: f"{share:.1%}")
    done_false: float = column("false ends", show=lambda share: f"{share:.1%}")
    killable: float = column("killable", show=lambda share: f"{share:.1%}")
    silent_safe: int = column("silent logs safe")


def _source(train_inputs: TrainInputs) -> "Source":
    from kopt.training.checkpoint.recipe import LogFolders

    return LogFolders((train_inputs.folder("checkpoint", "a folder of labelled logs"),))


COMMAND = TrainCommand(_source, LogRow)
