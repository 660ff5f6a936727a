"""``kopt train sizing``: on measured runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.options import seconds
from kopt.cli.output import column
from kopt.cli.progress import print_status
from kopt.cli.training.command import TrainCommand, TrainInputs
from kopt.cli.training.from_cluster import Imported, read_cluster, report, table_of

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.data.memory.commands import MeasuredCommand
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

    settings, python = train_inputs.settings, train_inputs.python
    tables = [_from_cluster(train_inputs)] if train_inputs.from_cluster else []
    if tables and not train_inputs.data:
        return MeasuredCommands(tuple(tables), settings, python)
    where = train_inputs.folder("sizing", "commands that were measured (runs.csv)")
    own = tables_in(where)
    if own:
        return MeasuredCommands((*own, *tables), settings, python)
    beside = MeasuredCommands(tuple(tables), settings, python) if tables else None
    return MemoryRuns(where, settings, python, beside=beside)


def _from_cluster(train_inputs: TrainInputs) -> Path:
    """The table with what the cluster has measured, brought up to date."""
    from kopt.cli.sizing import measured
    from kopt.cli.training import cluster_runs
    from kopt.data.memory.commands import merge_measured_commands

    table = table_of(train_inputs.settings, "sizing", "runs.csv")
    question = None
    if train_inputs.prometheus:
        question = measured.Question(train_inputs.prometheus, seconds(train_inputs.since, "--since"))
    measurements = measured.read(question, "") if question else None

    async def read(kube: "Kube") -> "Imported[MeasuredCommand]":
        result = await cluster_runs.dry_runs(kube, table.parent)
        if measurements is not None:
            result += await cluster_runs.running_pods(kube, measurements, table.parent)
        return result

    imported = read_cluster(train_inputs.kubeconfig, read)
    imported.rows, scripts = cluster_runs.of_tools(imported.rows)
    if scripts:
        aside = table.with_name("scripts.csv")
        merge_measured_commands(aside, scripts)
        print_status(
            f"{len(scripts):,} commands run scripts that lie in images; they are in {aside}: put a script into a "
            "folder, name it in the row, and give such rows with --data runs.csv"
        )
    kept = merge_measured_commands(table, imported.rows) if imported.rows or table.exists() else 0
    report(imported, table, kept, "measured command")
    return table


COMMAND = TrainCommand(_source, SizeRow, reads_cluster=True)
