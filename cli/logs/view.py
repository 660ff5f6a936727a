"""How a classified log is shown: one record per line for programs, changes of state and a summary for people."""

import csv
import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.text import Text

from kopt.cli.output import NOTHING, PIPE_WIDTH, Format, _cell, format_number, printable
from kopt.core.redaction import redact
from kopt.core.workload.checkpoint import JobState, JobStatus
from kopt.sdk.classify_log import LogLine

STYLES = {
    JobState.TRAIN: "green",
    JobState.EVAL: "cyan",
    JobState.LOADING: "cyan",
    JobState.FINISHED: "blue",
    JobState.CKPT_WRITING: "bold yellow",
    JobState.CKPT_DONE: "bold green",
    JobState.CKPT_FAILED: "bold red",
    JobState.CRASHED: "bold red",
    JobState.OOM: "bold red",
    JobState.STALLED: "magenta",
}
_HEAD = ("line", "time", "state", "safe", "step", "says")


class LogPrinter:
    """Prints on standard output; use as a context manager. ``every`` line, or only ``changes``, in the table."""

    def __init__(self, output: Format, *, every: bool = False, several: bool = False) -> None:
        self._output, self._every, self._several = output, every, several
        self._table = output is Format.TABLE
        self.changes = self._table and not every
        width = None if sys.stdout.isatty() else PIPE_WIDTH
        self._console = Console(highlight=False, width=width)
        self._name = self._path = ""
        self._last: dict[str, tuple[JobState, bool]] = {}
        self._titled = ""
        self._csv: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.flush()

    def flush(self) -> None:
        sys.stdout.flush()

    def begin(self, name: str, path: str) -> None:
        """What is shown from now on is of this log."""
        self._name, self._path = name, path

    def show(self, lines: Iterable[LogLine]) -> None:
        if self._table:
            for line in lines:
                self._row(line)
            return
        write = {Format.JSON: self._json, Format.YAML: self._yaml, Format.CSV: self._comma}[self._output]
        for line in lines:
            write({"file": self._name, "path": self._path, **line.to_dict()})

    def passed(self, status: JobStatus) -> None:
        """Time has passed without a line: printed where it changes the state."""
        now = (status.state, status.safe)
        if self._table and self._path in self._last and self._last[self._path] != now:
            self._last[self._path] = now
            self._print("", None, status, status.reason)

    def end(self, status: JobStatus) -> None:
        """The summary, for people only."""
        if not self._table:
            return
        self._title()
        kill = Text("yes", "bold green") if status.safe else Text("no", "bold red")
        state = Text(status.state.value, STYLES.get(status.state, ""))
        at = "" if status.step is None else f" at step {status.step:,}"
        self._console.print()
        self._console.print(Text.assemble("state            ", state, at))
        self._console.print(
            Text.assemble("safe to kill     ", kill, f"  {printable(redact(status.reason))}"), soft_wrap=True
        )
        self._console.print(Text(f"last checkpoint  {_durable(status)}"))
        self._console.print(Text(f"work at risk     {_risk(status)}"))
        if status.evidence_line:
            evidence = printable(redact(status.evidence_text))[: self._console.width - 30]
            self._console.print(Text(f"evidence         line {status.evidence_line:,}: {evidence}", "dim"))

    def _row(self, log_line: LogLine) -> None:
        now = (log_line.status.state, log_line.status.safe)
        if not self._every and self._last.get(self._path) == now:
            return
        self._last[self._path] = now
        self._print(f"{log_line.number:,}", log_line.at_s, log_line.status, log_line.text)

    def _print(self, number: str, at_s: float | None, status: JobStatus, text: str) -> None:
        self._title()
        step = NOTHING if status.step is None else f"{status.step:,}"
        safe = ("yes", "green") if status.safe else ("no", "red")
        line = Text(f"{number:>9}  {_clock(at_s):<8}  ")
        line.append(f"{status.state.value:<12}  ", STYLES.get(status.state, ""))
        line.append(f"{safe[0]:<4}  ", safe[1]).append(f"{step:>9}  ")
        room = max(20, self._console.width - line.cell_len)
        visible = printable(redact(text.strip()))
        line.append(visible if len(visible) <= room else f"{visible[: room - 1]}…")
        self._console.print(line, no_wrap=True, overflow="ellipsis", crop=False)

    def _title(self) -> None:
        if self._titled == self._path:
            return
        if self._several:
            self._console.print(Text(f"\n{printable(self._path)}", "bold"))
        if not self._titled or self._several:
            line, time, state, safe, step, says = _HEAD
            head = f"{line:>9}  {time:<8}  {state:<12}  {safe:<4}  {step:>9}  {says}"
            self._console.print(Text(head, "bold dim"))
        self._titled = self._path

    def _json(self, record: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(record, allow_nan=False) + "\n")

    def _yaml(self, record: dict[str, Any]) -> None:
        import yaml

        sys.stdout.write(yaml.safe_dump([record], sort_keys=False))

    def _comma(self, record: dict[str, Any]) -> None:
        if self._csv is None:
            self._csv = csv.writer(sys.stdout, lineterminator="\n")
            self._csv.writerow(record)
        self._csv.writerow([_cell(value) for value in record.values()])


def _clock(at_s: float | None) -> str:
    try:
        return NOTHING if at_s is None else f"{datetime.fromtimestamp(at_s, UTC):%H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return NOTHING


def _durable(status: JobStatus) -> str:
    ago = status.seconds_since_durable
    return status.durable_text if not status.evidence or ago is None else f"{status.durable_text}, {_span(ago)} ago"


def _risk(status: JobStatus) -> str:
    risk = status.work_at_risk_gpu_seconds
    if risk is None:
        return "unknown: no line has a time"
    low, high = format_number(round(risk.low)), format_number(round(risk.high))
    return f"{format_number(round(risk.value))} GPU-seconds ({low} to {high}), with the start again"


def _span(seconds: float) -> str:
    for size, word in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {word}"
    return f"{seconds:.0f} s"
