"""``kopt train demand``: on series of demand: files, a Prometheus server, or the services of this home."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.demand import inputs
from kopt.cli.errors import usage_error
from kopt.cli.options import seconds
from kopt.cli.output import column
from kopt.cli.training.command import TrainCommand, TrainInputs

if TYPE_CHECKING:
    from kopt.training.pipeline.protocols import Source


@dataclass(frozen=True)
class SummaryRow:
    """Scores of the new model on services it had not seen, per slice and horizon."""

    slice: str = column("slice")
    horizon_s: int = column("ahead", show=lambda seconds: f"{seconds / 60:g} min")
    services: int = column("services")
    mase: float = column("MASE")
    mase_ratio: float = column("to last value", show=lambda ratio: f"× {ratio:.2f}")
    violation_q99: float = column("p99 violated", show=lambda share: f"{share:.1%}")
    eff99: float = column("lent of oracle's", show=lambda share: f"{share:.0%}")
    eff99_last: float = column("by last value", show=lambda share: f"{share:.0%}")


def _source(train_inputs: TrainInputs) -> "Source":
    from kopt.training.demand.sources import FileSource, GeneratedSource, PrometheusSource

    since_s, step_s = seconds(train_inputs.since, "--since"), seconds(train_inputs.step, "--step")
    if train_inputs.data and train_inputs.prometheus:
        usage_error("give --data or --prometheus, not both", "--data")
    if train_inputs.prometheus:
        if not train_inputs.query:
            usage_error(inputs.QUERY_NEEDED, "--query")
        return PrometheusSource(train_inputs.prometheus, train_inputs.query, since_s, step_s, train_inputs.label)
    if train_inputs.query:
        usage_error("--query goes with --prometheus", "--query")
    if train_inputs.data:
        return FileSource(inputs.readable(Path(train_inputs.data)))
    own = train_inputs.settings.home / "demand"
    return FileSource(own) if own.is_dir() else GeneratedSource()


COMMAND = TrainCommand(_source, SummaryRow)
