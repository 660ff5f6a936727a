"""``kopt train runtime``: on tables of jobs that ran."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused, usage_error
from kopt.cli.output import column
from kopt.cli.training.command import TrainCommand, TrainInputs
from kopt.cli.training.from_cluster import Imported, report, table_of
from kopt.core.settings import Settings
from kopt.core.workload.run_time import JobRun

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

    what = "tables of jobs that ran"
    if not train_inputs.from_cluster:
        return RunTables((train_inputs.folder("runtime", what),))
    if train_inputs.prometheus:
        usage_error("runs are kept by the endpoint: leave --prometheus out", "--prometheus")
    kept = _kept(train_inputs.settings)
    return RunTables((train_inputs.folder("runtime", what), kept) if train_inputs.data else (kept,))


def _kept(settings: Settings) -> Path:
    """The table with the runs that the endpoint has been told of, brought up to date."""
    from kopt.data.jobs.runs import write_runs
    from kopt.serving.base.database.interface import DatabaseError
    from kopt.serving.base.database.opening import location
    from kopt.serving.runtime.table import MOST_RUNS, RunTable

    path, where = table_of(settings, "runtime", "runs.csv"), location(settings, "runs")
    by_cluster: dict[str, tuple[JobRun, ...]] = {}
    try:
        table = RunTable(where)
        for owner, cluster in table.clusters(None) if isinstance(where, str) or where.exists() else ():
            # Callers may give their clusters the same name.
            name = "/".join(filter(None, (owner.rpartition(":")[2], cluster))) or "cluster"
            by_cluster[name] = table.since(owner, cluster, 0, MOST_RUNS).runs
        table.close()
    except DatabaseError as error:
        raise Refused(f"the runs that the endpoint keeps cannot be read: {error}") from error
    try:
        kept = write_runs(path, by_cluster) if by_cluster else 0
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror or error}") from error
    report(Imported[JobRun](), path, kept, "run of a job")
    return path


COMMAND = TrainCommand(_source, RunTimeRow, reads_cluster=True)
