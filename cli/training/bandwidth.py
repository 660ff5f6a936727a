"""``kopt train bandwidth``: on measured collectives."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kopt.cli.output import column
from kopt.cli.training.command import TrainCommand, TrainInputs

if TYPE_CHECKING:
    from kopt.training.pipeline.protocols import Source


@dataclass(frozen=True)
class BandwidthRow:
    """Scores of the new model on classes of machines it had not seen, per slice."""

    slice: str = column("slice")
    services: int = column("machines")
    median_error: float = column("median error", show=lambda share: f"{share:.1%}")
    p90_error: float = column("p90", show=lambda share: f"{share:.1%}")
    coverage: float = column("inside", show=lambda share: f"{share:.1%}")
    latency_error: float = column("latency's error", show=lambda share: f"{share:.1%}")


def _source(train_inputs: TrainInputs) -> "Source":
    from kopt.training.bandwidth.recipe import BandwidthTables

    return BandwidthTables(train_inputs.folder("bandwidth", "tables of measured collectives"))


COMMAND = TrainCommand(_source, BandwidthRow)
