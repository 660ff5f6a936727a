"""``kopt train runtime``: on tables of jobs that ran."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.output import column
from kopt.cli.training.command import TrainCommand, TrainInputs

if TYPE_CHECKING:
    from kopt.training.pipeline.protocols import Source


@dataclass(frozen=True)
class RunTimeRow:
    """Scores of the new model on clusters it had not seen, and on the later part of those it had, per slice."""

    slice: str = column("slice")
    services: int = column("clusters")
    runs: int = column("runs")
    loss: float = column("loss", show=lambda loss: f"{loss:.3f}")
    recent_loss: float = column("last 20 alone", show=lambda loss: f"{loss:.3f}")
    factor: float = column("half within ×", show=lambda factor: f"{factor:.2f}")
    coverage: float = column("within 5-95 %", show=lambda share: f"{share:.1%}")
    worst_month: float = column("worst month", show=lambda share: f"{share:.1%}")


def _source(train_inputs: TrainInputs) -> "Source":
    from kopt.training.runtime.recipe import RunTables

    return RunTables((Path(train_inputs.folder("runtime", "tables of jobs that ran")),))


COMMAND = TrainCommand(_source, RunTimeRow)
