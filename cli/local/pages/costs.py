"""Where the pages read costs: the database of the settings, ``cost.db`` of this machine, or the example's.

``KOPT_PAGES_PRICES`` names a price book that goes before the shipped one, as ``kopt controller meter --prices`` has it.
What pods held and did not use is measured by the Prometheus of the pages, where there is one.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from kopt.cli.local.example.costs import costs_file, example_activity
from kopt.cli.local.pages.prometheus import Pod, PodActivities, prometheus_of
from kopt.controllers.meter.reports import CostReports
from kopt.controllers.meter.store import CostStore
from kopt.core.cost.metering import Milliseconds
from kopt.core.cost.prices import PriceBook, PriceError, price_book, shipped_prices
from kopt.core.settings import Settings
from kopt.dashboard.data.costs import Recorded
from kopt.policies.cost.report import CostEvent, CostQuestion, CostReport
from kopt.serving.base.database.opening import Location, location


class PriceBookError(ValueError):
    """The price book cannot be used; the message names the file."""


class MeterDatabase:
    """Opened when it is there first: pages may start before anything is metered, and create nothing."""

    def __init__(
        self,
        where: Location,
        book: PriceBook,
        activity: "Callable[[int, int], Mapping[Pod, float] | None] | None" = None,
    ) -> None:
        self._where, self._book, self._activity = where, book, activity
        self._lock = threading.Lock()
        self._reports: CostReports | None = None

    def recorded(self) -> Recorded:
        reports = self._opened()
        if reports is None:
            return Recorded(frozenset(), None, self._book.prices)
        problem = self._activity.problem if isinstance(self._activity, PodActivities) else ""
        return Recorded(reports.namespaces(), reports.store.metered_ms(), self._book.prices, problem)

    def report(self, question: CostQuestion) -> CostReport:
        activity = None if self._activity is None else self._activity(question.start_ms, question.end_ms)
        return self._existing().report(question, activity)

    def queue_use(
        self, start_ms: Milliseconds, step_ms: Milliseconds, steps: int
    ) -> Mapping[tuple[str, str], tuple[float | None, ...]]:
        reports = self._opened()
        return {} if reports is None else reports.queue_use(start_ms, step_ms, steps)

    def events(self, question: CostQuestion, row: str) -> list[CostEvent]:
        return self._existing().events(question, row)

    def _opened(self) -> CostReports | None:
        with self._lock:
            if self._reports is None and (isinstance(self._where, str) or self._where.is_file()):
                self._reports = CostReports(CostStore(self._where, read_only=True), self._book)
            return self._reports

    def _existing(self) -> CostReports:
        reports = self._opened()
        # Asked only after ``recorded`` has told that there is something.
        assert reports is not None
        return reports


def costs_of(environ: Mapping[str, str], settings: Settings) -> MeterDatabase:
    """Raises PriceBookError."""
    book = shipped_prices()
    if named := environ.get("KOPT_PAGES_PRICES", ""):
        try:
            book = book.with_own(price_book(Path(named).read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, PriceError) as error:
            raise PriceBookError(f"KOPT_PAGES_PRICES: {named}: {error}") from error
    if environ.get("KOPT_PAGES_EXAMPLE", "") == "true":
        # Never among what somebody has metered.
        return MeterDatabase(costs_file(settings.home), book, example_activity)
    prometheus = prometheus_of(environ)
    activity = None if prometheus is None else PodActivities(prometheus)
    return MeterDatabase(location(settings, "cost"), book, activity)
