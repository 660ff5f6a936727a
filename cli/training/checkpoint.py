"""``kopt train checkpoint``: on labelled logs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kopt.cli.errors import Refused, usage_error
from kopt.cli.output import column
from kopt.cli.progress import print_status
from kopt.cli.training.command import TrainCommand, TrainInputs
from kopt.cli.training.from_cluster import Imported, report, table_of
from kopt.core.settings import Settings

if TYPE_CHECKING:
    from kopt.serving.checkpoint.recording import RecordedJob
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

    what = "a folder of labelled logs"
    if not train_inputs.from_cluster:
        return LogFolders((train_inputs.folder("checkpoint", what),))
    if train_inputs.prometheus:
        usage_error("logs are recorded by the endpoint: leave --prometheus out", "--prometheus")
    recorded = _recorded(train_inputs.settings)
    beside = (train_inputs.folder("checkpoint", what),) if train_inputs.data else ()
    return LogFolders((*beside, recorded))


def _recorded(settings: Settings) -> Path:
    """The folder with what the endpoint has recorded, brought up to date."""
    from kopt.serving.base.database.interface import DatabaseError
    from kopt.serving.base.database.opening import location
    from kopt.serving.checkpoint.recording import RecordingTable
    from kopt.training.checkpoint.recorded import NotLabelled, merge_records, record_of

    folder = table_of(settings, "checkpoint", "records.jsonl").parent
    imported: Imported[tuple[RecordedJob, Mapping[str, Any]]] = Imported()
    where = location(settings, "recordings")
    try:
        table = RecordingTable(where)
        for owner, name in table.jobs() if isinstance(where, str) or where.exists() else ():
            job = table.load(owner, name)
            try:
                imported.rows.append((job, record_of(job)))
            except NotLabelled as error:
                imported.leave_out(name, error)
        table.close()
    except DatabaseError as error:
        raise Refused(f"what the endpoint has recorded cannot be read: {error}") from error
    if not imported.rows and not imported.excluded:
        print_status("nothing is recorded: KOPT_RECORD_LOGS_MIB says how much the endpoint may keep (docs/training.md)")
    index = folder / "records.jsonl"
    kept = merge_records(folder, imported.rows) if imported.rows or index.exists() else 0
    report(imported, index, kept, "recorded log")
    return folder


COMMAND = TrainCommand(_source, LogRow, reads_cluster=True)
