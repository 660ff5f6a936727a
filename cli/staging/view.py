"""How far ``kopt stage`` is, for people: a bar on a terminal, a line every ten seconds elsewhere."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator

import typer

from kopt.cli.errors import is_terminal
from kopt.cli.output import Format
from kopt.cli.progress import print_status
from kopt.core.staging.manifest import Phase, Progress
from kopt.core.units import format_bytes

STATUS_INTERVAL_S = 10.0
Listener = Callable[[Progress], None]


@contextlib.contextmanager
def listening(output: Format, retry_s: float) -> Iterator[Listener]:
    """Shows what is reported while the block runs; ``retry_s`` is for how long a silent source is asked again."""
    if output is Format.JSON:
        yield lambda progress: typer.echo(json.dumps(progress.to_dict()))
    elif is_terminal():
        with _drawn(Silence(retry_s)) as listener:
            yield listener
    else:
        yield TextView(Silence(retry_s)).listen


class Silence:
    """Since when nothing has come of what is waited for."""

    def __init__(self, retry_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._retry_s, self._clock = retry_s, clock
        self._last: tuple[object, ...] = ()
        self._since_s = clock()

    def describe(self, progress: Progress) -> str:
        """For the end of a sentence; "" unless it has been silent for longer than sources are at times."""
        state = (progress.phase, progress.bytes_done, progress.objects_done)
        if state != self._last:
            self._last, self._since_s = state, self._clock()
        silent_s = self._clock() - self._since_s
        if silent_s < STATUS_INTERVAL_S or progress.phase not in (Phase.LISTING, Phase.FETCHING):
            return ""
        return f"; nothing has come for {silent_s:.0f} s, asked again for {self._retry_s:g} s"


class TextView:
    """Sentences for a log: one when fetching begins, one every ten seconds, and one when all is there."""

    def __init__(
        self, silence: Silence, emit: Callable[[str], None] = print_status, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._silence, self._emit, self._clock = silence, emit, clock
        self._next_s = clock() + STATUS_INTERVAL_S
        self._phase = Phase.LISTING

    def listen(self, progress: Progress) -> None:
        silent, now_s = self._silence.describe(progress), self._clock()
        begins = progress.phase is Phase.FETCHING is not self._phase
        if progress.phase is Phase.COMPLETE and self._phase is Phase.FETCHING:
            self._emit(_fetched(progress))
        self._phase = progress.phase
        if progress.phase in _DOING and (begins or now_s >= self._next_s):
            self._next_s = now_s + STATUS_INTERVAL_S
            self._emit(_sentence(progress) + silent)


_DOING = {Phase.LISTING: "listing", Phase.CHECKING: "checking what is there", Phase.FETCHING: "fetching"}


def _sentence(progress: Progress) -> str:
    if progress.phase is not Phase.FETCHING:
        return f"{_DOING[progress.phase]} {progress.source if progress.phase is Phase.LISTING else ''}".rstrip()
    remaining = "" if progress.remaining_s is None else f", {progress.remaining_s:,.0f} s left"
    return _fetched(progress) + remaining


def _fetched(progress: Progress) -> str:
    return (
        f"{format_bytes(progress.bytes_done)} of {format_bytes(progress.bytes)}, {progress.objects_done:,} of "
        f"{progress.objects:,} files, {format_bytes(int(progress.bytes_per_second))}/s"
    )


@contextlib.contextmanager
def _drawn(silence: Silence) -> Iterator[Listener]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=16), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None)

        def listen(progress: Progress) -> None:
            if progress.phase in _DOING:
                total = progress.bytes if progress.phase is Phase.FETCHING else None
                bars.update(
                    task,
                    description=_sentence(progress) + silence.describe(progress),
                    completed=progress.bytes_done,
                    total=total,
                )

        yield listen
