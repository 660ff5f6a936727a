"""Progress on standard error: bars on a terminal, a line per step elsewhere, nothing on standard output."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import typer

from kopt.cli.errors import is_terminal

Advance = Callable[[int, int], None]


@contextlib.contextmanager
def bar(what: str) -> Iterator[Advance]:
    """A bar that the caller moves with ``advance(done, total)``; outside a terminal it stays silent."""
    if not is_terminal():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Tells what is being done while it takes longer than an instant, on a terminal only."""
    if not is_terminal():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def print_status(text: str) -> None:
    """A line for people on standard error."""
    typer.echo(text, err=True)


@dataclass(frozen=True)
class _Step:
    """A running step: its name, when it began (monotonic seconds), and what it says at the moment."""

    what: str
    begun: float
    now: str


class Steps:
    """Steps of a longer start: each is printed when it ends, with its seconds; the running ones show on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status("") if is_terminal() else None
        self._running: dict[str, _Step] = {}
        self.seconds: dict[str, float] = {}

    def __enter__(self) -> "Steps":
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def begin(self, key: str, what: str) -> None:
        self._running[key] = _Step(what, time.monotonic(), what)
        self._draw()

    def update(self, key: str, what: str) -> None:
        """Say more about a running step, until it ends."""
        if key in self._running:
            self._running[key] = replace(self._running[key], now=what)
            self._draw()

    def end(self, key: str, outcome: str = "", *, failed: bool = False) -> None:
        """The step is over; ``outcome`` is printed after its name."""
        step = self._running.pop(key, None) or _Step(key, time.monotonic(), key)
        self.seconds[key] = round(time.monotonic() - step.begun, 1)
        symbol, colour = ("✗", "red") if failed else ("✓", "green")
        self._line(f"{symbol} {step.what}{': ' if outcome else ''}{outcome}", self.seconds[key], colour)
        self._draw()

    @contextlib.contextmanager
    def following(self) -> "Iterator[Callable[[str], None]]":
        """For work that only reports what it begins: each step ends the one before."""
        running: list[str] = []

        def progress(what: str) -> None:
            if running:
                self.end(running.pop())
            running.append(what)
            self.begin(what, what)

        try:
            yield progress
        except BaseException:
            if running:
                self.end(running.pop(), failed=True)
            raise
        if running:
            self.end(running.pop())

    def _line(self, text: str, seconds: float, colour: str) -> None:
        from rich.text import Text

        line = Text(text)
        line.stylize(colour, 0, 1)
        self._console.print(line.append(f"  {seconds:.1f} s", "dim"), soft_wrap=True)

    def sentence(self, text: str) -> None:
        """A sentence between the steps."""
        from rich.text import Text

        self._console.print(Text(text), soft_wrap=True)

    def _draw(self) -> None:
        if self._status:
            from rich.text import Text

            self._status.update(Text(" · ".join(step.now for step in self._running.values())))
