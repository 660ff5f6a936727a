"""Where the pages read alerts: their Prometheus has what fired, the settings' database who looks after it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kopt.cli.alerts.acknowledgements import Acknowledgements
from kopt.cli.alerts.reading import read_episodes
from kopt.cli.local.example.alerts import ExampleAlerts
from kopt.cli.local.pages.prometheus import prometheus_of
from kopt.core.alerts.acknowledgement import Acknowledgement
from kopt.core.settings import Settings
from kopt.dashboard.data.alerts import AlertHistory, AlertsError, AlertSource
from kopt.serving.base.database.interface import DatabaseError
from kopt.serving.base.database.opening import Location, location

if TYPE_CHECKING:
    from kopt.data.demand.prometheus import Server


class RecordedAlerts:
    """``server`` connects anew with each reading, as its token changes. The database may be one that the pages only
    read: then nothing can be acknowledged."""

    def __init__(self, server: "Callable[[], Server]", where: Location) -> None:
        self._server, self._store = server, Acknowledgements(where)
        self._readable = Acknowledgements(where, read_only=True)

    def history(self, window_s: int) -> AlertHistory:
        try:
            with self._server() as server:
                listed, step_s = read_episodes(server, window_s)
        except (ValueError, OSError) as error:
            raise AlertsError(f"Alerts cannot be read: {error}") from error
        if not listed:
            return AlertHistory((), (), step_s)
        oldest_s = min(each.fired_s for each in listed) - step_s
        try:
            with _answering():
                return AlertHistory(tuple(listed), tuple(self._readable.since(oldest_s)), step_s)
        except AlertsError as error:
            # What fires is worth more than who looks after it.
            return AlertHistory(tuple(listed), (), step_s, f"{error}")

    def acknowledge(self, item: Acknowledgement) -> None:
        with _answering():
            self._store.add(item)


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        raise AlertsError(f"Acknowledgements cannot be used: {error}") from error


def alerts_of(environ: Mapping[str, str], settings: Settings) -> AlertSource | None:
    """None where the environment names no Prometheus; the example's pages have the example's alerts."""
    if environ.get("KOPT_PAGES_EXAMPLE", "") == "true":
        return ExampleAlerts()
    prometheus = prometheus_of(environ)
    return None if prometheus is None else RecordedAlerts(prometheus, location(settings, "alerts"))
