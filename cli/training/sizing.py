"""``kopt train sizing``: on measured runs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kopt.cli.output import column
from kopt.cli.training.command import TrainCommand, TrainInputs

if TYPE_CHECKING:
    from kopt.training.pipeline.protocols import Source


@dataclass(frozen=True)
class SizeRow:
    """Scores of the new model on families of models it had not seen, per slice."""

    slice: str = column("slice")
    services: int = column("runs")
    median_error: float = column("median error", show=lambda share: f"{share:.1%}")
    p90_error: float = column("p90", show=lambda share: f"{share:.1%}")
    p_under: float = column("above the interval", show=lambda share: f"{share:.1%}")
    mean_slack: float = column("mean slack", show=lambda share: f"{share:.1%}")
    coverage: float = column("inside", show=lambda share: f"{share:.1%}")


def _source(train_inputs: TrainInputs) -> "Source":
    from kopt.data.memory.commands import tables_in
    from kopt.training.sizing.recipe import MeasuredCommands, MemoryRuns

    where = train_inputs.folder("sizing", "commands that were measured (runs.csv)")
    tables = tables_in(where)
    if tables:
        return MeasuredCommands(tuple(tables), train_inputs.settings, train_inputs.python)
    return MemoryRuns(where, train_inputs.settings, train_inputs.python)


COMMAND = TrainCommand(_source, SizeRow)
