"""``kopt logs``: what training logs say, without a server."""

import contextlib
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.job_log import refuse_binary
from kopt.cli.options import Output
from kopt.cli.output import Format
from kopt.cli.progress import print_status
from kopt.formats.joblog import LineSplitter
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.cli.logs.view import LogPrinter
    from kopt.models.checkpoint.session import Session

app = typer.Typer(no_args_is_help=True, help="Read training logs: may the job be killed now, what would be lost?")
_STDIN = "-"
_PIECE = 1 << 16

Files = Annotated[list[str], typer.Argument(metavar="FILE...", help="Logs, also .gz; - is standard input.")]
Gpus = Annotated[int, typer.Option("--gpus", min=1, metavar="N", help="GPUs that stop when the job is killed.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on as files grow, are rotated or truncated.")]
Every = Annotated[bool, typer.Option("--all", help="Every line in the table, not only changes of state.")]
Model = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="champion, challenger, a version number, or shipped.")
]


@app.callback()
def logs() -> None:
    """Read training logs: may the job be killed now, what would be lost?"""


@app.command()
def classify(
    files: Files,
    follow: Follow = False,
    gpus: Gpus = 1,
    every: Every = False,
    model: Model = "champion",
    output: Output = Format.TABLE,
) -> None:
    """Where a training job is, line by line of its log: training, writing a checkpoint, safe to kill.

    The table shows changes of state and ends with what would be lost now; -o json prints one object per line of the
    log. Times are those in the log; with [bold]--follow[/bold] those at which lines come. Each file is a job.

    Examples:

        kopt logs classify train.log

        kopt logs classify --follow --gpus 8 train.log

        kubectl logs -f trainer-0 | kopt logs classify --follow -

        kopt logs classify -o json run-*.log.gz | jq 'select(.state == "CKPT_DONE") | .last_durable_step'
    """
    _check(files, follow)
    from kopt.cli.logs.follow import followed
    from kopt.cli.logs.view import LogPrinter
    from kopt.sdk.classify_log import load

    predictor = load(model, load_settings())
    printer = LogPrinter(output, every=every, several=len(files) > 1)
    sessions = [predictor.session(gpus) for _ in files]
    with printer:
        if follow:
            followed(
                [(_named(file), Path(file)) for file in files if file != _STDIN],
                sessions,
                printer,
                standard_input=_STDIN in files,
            )
            return
        for name, session in zip(files, sessions, strict=True):
            printer.begin(_named(name), name)
            _read_whole(name, session, printer)
            printer.end(session.status())


def _check(files: list[str], follow: bool) -> None:
    """Before the model is loaded. A file that is not there yet may be followed."""
    from kopt.sdk.classify_log import pieces

    if files.count(_STDIN) > 1:
        usage_error("standard input (-) can be read only once", "FILE")
    if follow and _STDIN in files and len(files) > 1:
        usage_error("standard input is followed by itself; give it alone", "FILE")
    for name in files:
        path = Path(name)
        if name == _STDIN:
            continue
        if path.is_dir():
            raise Refused(f"{path} is a folder; name the logs in it, for example {path / '*.log'}")
        if not path.exists() and not follow:
            raise Refused(
                f"{path}: there is no such file; name a log, - for standard input, or --follow to wait for it"
            )
        if path.exists() and not os.access(path, os.R_OK):
            raise Refused(f"{path} may not be read by you")
        if path.is_file():
            with contextlib.suppress(OSError, EOFError, zlib.error):
                refuse_binary(name, next(pieces(path), b""))


def _named(name: str) -> str:
    return _STDIN if name == _STDIN else Path(name).name


def _read_whole(name: str, session: "Session", printer: "LogPrinter") -> None:
    """All lines of one log, in batches; what comes through a pipe is printed as it comes."""
    from kopt.sdk.classify_log import BATCH, read

    splitter, pending = LineSplitter(), list[str]()

    def flush(least: int) -> None:
        while len(pending) >= least and pending:
            batch, pending[:] = pending[:BATCH], pending[BATCH:]
            printer.show(read(session, batch, changes=printer.changes))

    for piece in _pieces(name):
        pending += (line.text for line in splitter.feed(piece))
        flush(1 if name == _STDIN else BATCH)
        if name == _STDIN:
            printer.flush()
    pending += (line.text for line in splitter.close())
    flush(1)
    if not session.lines:
        print_status(f"kopt: {_named(name)} is empty")


def _pieces(name: str) -> Iterator[bytes]:
    from kopt.sdk.classify_log import pieces

    if name == _STDIN:
        is_first = True
        while piece := os.read(sys.stdin.fileno(), _PIECE):
            if is_first:
                refuse_binary("standard input", piece)
            is_first = False
            yield piece
        return
    try:
        yield from pieces(Path(name))
    except (EOFError, zlib.error) as error:
        raise Refused(f"{name}: the file is packed but damaged or cut off ({error})") from error
