"""``kopt train bandwidth``: on measured collectives."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.errors import usage_error
from kopt.cli.output import column
from kopt.cli.training.command import TrainCommand, TrainInputs
from kopt.cli.training.from_cluster import read_cluster, report, table_of

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

    if not train_inputs.from_cluster:
        return BandwidthTables(train_inputs.folder("bandwidth", "tables of measured collectives"))
    if train_inputs.prometheus:
        usage_error("a cluster's bandwidths are in its objects: leave --prometheus out", "--prometheus")
    table = _from_cluster(train_inputs)
    if not train_inputs.data:
        return BandwidthTables(table)
    return BandwidthTables(train_inputs.folder("bandwidth", "tables of measured collectives"), (table,))


def _from_cluster(train_inputs: TrainInputs) -> Path:
    """The table with what the cluster has measured, brought up to date."""
    from kopt.cli.training.cluster_collectives import collectives
    from kopt.models.bandwidth.rows import merge_measured

    table = table_of(train_inputs.settings, "bandwidth", "bandwidth.csv")
    imported = read_cluster(train_inputs.kubeconfig, collectives)
    kept = merge_measured(table, imported.rows) if imported.rows or table.exists() else 0
    report(imported, table, kept, "measured pair of nodes")
    return table


COMMAND = TrainCommand(_source, BandwidthRow, reads_cluster=True)
