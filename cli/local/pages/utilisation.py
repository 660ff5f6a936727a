"""Where the pages read how busy GPUs were over months: the settings' database, or ``busy.db`` of this machine."""

import threading
from collections.abc import Mapping

from kopt.controllers.meter.busy_hours import BusyHours
from kopt.core.settings import Settings
from kopt.dashboard.data.utilisation import UtilisationError
from kopt.policies.efficiency.busy_counts import PoolUse, day_of, pool_use
from kopt.serving.base.database.interface import DatabaseError, NoTableError
from kopt.serving.base.database.opening import Location, location


class RecordedUtilisation:
    """Opened when it is there first: pages may start before anything is stored, and create nothing."""

    def __init__(self, where: Location) -> None:
        self._where, self._lock = where, threading.Lock()
        self._hours: BusyHours | None = None

    def days(self, since_s: float) -> list[PoolUse]:
        hours = self._opened()
        try:
            return [] if hours is None else pool_use(hours.hours(since_s), day_of)
        except NoTableError:
            # Costs alone are recorded there.
            return []
        except DatabaseError as error:
            raise UtilisationError(f"How busy GPUs were over months cannot be read: {error}") from error

    def _opened(self) -> BusyHours | None:
        with self._lock:
            if self._hours is None and (isinstance(self._where, str) or self._where.is_file()):
                self._hours = BusyHours(self._where, read_only=True)
            return self._hours


def utilisation_of(environ: Mapping[str, str], settings: Settings) -> RecordedUtilisation | None:
    """None for the example's pages: what somebody has recorded is no example."""
    if environ.get("KOPT_PAGES_EXAMPLE", "") == "true":
        return None
    return RecordedUtilisation(location(settings, "busy"))
