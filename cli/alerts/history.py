"""``kopt alerts history`` and ``acknowledge``: what fired, until when, and who has seen it, without an Alertmanager."""

import getpass
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.alerts.acknowledgements import Acknowledgements
from kopt.cli.alerts.reading import SHORTEST_STEP_S, read_episodes
from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Output, PrometheusToken, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import print_status
from kopt.core.alerts.acknowledgement import LONGEST_NOTE, Acknowledgement, is_printable_note
from kopt.core.alerts.episodes import Episode
from kopt.core.units import format_span
from kopt.policies.cost.budgets import stamp

_LONGEST_S = 400 * 86_400
PrometheusOption = Annotated[
    str, typer.Option("--prometheus", metavar="URL", help="Where the rules of `kopt alerts rules` are evaluated.")
]


@dataclass(frozen=True)
class EpisodeRow:
    """``resolved`` is empty while it fires, ``acknowledged`` who has, with their note."""

    id: str = column("id")
    alert: str = column("alert")
    severity: str = column("severity", drop=1)
    about: str = column("about")
    fired: str = column("fired")
    resolved: str = column("resolved")
    seconds: float = column("lasted", show=format_span, drop=2)
    acknowledged: str = column("acknowledged")


def history(
    prometheus: PrometheusOption,
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="How far back.")] = "7d",
    every: Annotated[bool, typer.Option("--all", help="Also alerts of other rules than kopt's.")] = False,
    token_file: PrometheusToken = None,
    output: Output = Format.TABLE,
) -> None:
    """Show which alerts fired, when they were resolved, and who has acknowledged them.

    Read are the samples that Prometheus keeps of alerts, so nothing else has to run; times are right to the distance
    of samples, which is said below. Acknowledgements are in the database of KOPT_DATABASE_URL, else in alerts.db below
    KOPT_STATE_DIR or KOPT_HOME.

    Examples:

        kopt alerts history --prometheus http://prometheus:9090

        kopt alerts history --prometheus http://prometheus:9090 --since 30d -o json
    """
    span_s = seconds(since, "--since")
    if not SHORTEST_STEP_S <= span_s <= _LONGEST_S:
        usage_error("a window is 1min to 400d long", "--since")
    listed, step_s = _read(prometheus, span_s, token_file, every=every)
    with _opened() as store:
        known = store.since(time.time() - span_s)
    rows = [_row(each, known, step_s) for each in listed]
    firing = sum(1 for each in listed if each.resolved_s is None)
    remark = f"{firing} of {len(rows)} still fire. Times are right to {format_span(step_s)}."
    show(Answer("alerts", rows, {"step_s": step_s}, remarks=[remark], empty="no alert fired"), output)


def acknowledge(
    identity: Annotated[str, typer.Argument(metavar="ID", help="As `kopt alerts history` has it.")],
    prometheus: PrometheusOption,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="What is being done about it.")] = "",
    who: Annotated[str, typer.Option("--by", metavar="NAME", help="The user who runs this by default.")] = "",
    token_file: PrometheusToken = None,
) -> None:
    """Say that somebody looks after an alert that fires: it is acknowledged until it is resolved.

    Examples:

        kopt alerts acknowledge 3fa9c01b77 --prometheus http://prometheus:9090 --note "node drained, GPU ordered"
    """
    if not is_printable_note(note) or not who.isprintable():
        usage_error(f"a note is printable text of at most {LONGEST_NOTE} characters", "--note")
    listed, _ = _read(prometheus, 3600, token_file, every=True)
    firing = {each.identity: each for each in listed if each.resolved_s is None}
    if identity not in firing:
        there = ", ".join(firing) or "none"
        raise Refused(f"no alert {identity!r} fires now; there are {there}")
    with _opened() as store:
        store.add(Acknowledgement(identity, time.time(), who or getpass.getuser(), note))
    print_status(f"{firing[identity].alert} is acknowledged until it is resolved")


def _read(url: str, span_s: int, token_file: Path | None, *, every: bool) -> tuple[list[Episode], int]:
    """Episodes, and how far samples are apart. Raises Refused."""
    from kopt.cli.sizing.measured import read_token
    from kopt.data.demand.prometheus import PrometheusError, Server

    try:
        with Server(url, token=read_token(token_file)) as server:
            return read_episodes(server, span_s, every=every)
    except (PrometheusError, ValueError) as error:
        raise Refused(f"alerts cannot be read: {error}") from error


def _row(episode: Episode, known: Sequence[Acknowledgement], step_s: int) -> EpisodeRow:
    own = [each for each in known if each.identity == episode.identity and episode.has(each.at_s, step_s)]
    end_s = time.time() if episode.resolved_s is None else episode.resolved_s
    return EpisodeRow(
        episode.identity,
        episode.alert,
        episode.severity,
        episode.about,
        stamp(round(1000 * episode.fired_s)),
        "" if episode.resolved_s is None else stamp(round(1000 * episode.resolved_s)),
        end_s - episode.fired_s,
        "; ".join(f"{each.who}{f': {each.note}' if each.note else ''}" for each in own),
    )


@contextmanager
def _opened() -> Iterator[Acknowledgements]:
    """Closed afterwards. Raises Refused where the database cannot be used."""
    from kopt.core.settings import SettingsError
    from kopt.serving.base.database.interface import DatabaseError
    from kopt.serving.base.database.opening import location
    from kopt.serving.base.environment import load_settings

    try:
        store = Acknowledgements(location(load_settings(), "alerts"))
    except SettingsError as error:
        raise Refused(str(error)) from error
    try:
        yield store
    except DatabaseError as error:
        raise Refused(f"acknowledgements cannot be used: {error}") from error
    finally:
        store.close()
