"""The pages: a new one is a folder of its own and a line here."""

from collections.abc import Mapping

from kopt.dashboard.pages.alerts import page as alerts
from kopt.dashboard.pages.capacity import page as capacity
from kopt.dashboard.pages.cluster import page as cluster
from kopt.dashboard.pages.cost import page as cost
from kopt.dashboard.pages.efficiency import page as efficiency
from kopt.dashboard.pages.gpus import page as gpus
from kopt.dashboard.pages.jobs import page as jobs
from kopt.dashboard.pages.lending import page as lending
from kopt.dashboard.pages.models import page as models
from kopt.dashboard.pages.page import Page
from kopt.dashboard.pages.queue import page as queue
from kopt.dashboard.pages.quotas import page as quotas
from kopt.dashboard.pages.services import page as services
from kopt.dashboard.pages.sizes import page as sizes
from kopt.dashboard.pages.topology import page as topology

NAVIGATION: Mapping[str, tuple[Page, ...]] = {
    "Serving": (services.PAGE, lending.PAGE),
    "Workloads": (queue.PAGE, quotas.PAGE, jobs.PAGE, sizes.PAGE),
    "Hardware": (gpus.PAGE, topology.PAGE),
    "Operation": (cluster.PAGE, alerts.PAGE, models.PAGE),
    "Planning": (capacity.PAGE, efficiency.PAGE, cost.PAGE),
}
"""The groups of the navigation and their pages, in the order that readers see."""

_LED_TO = (services.SERVICE,)
"""Pages that others lead to."""

PAGES: tuple[Page, ...] = (*(page for pages in NAVIGATION.values() for page in pages), *_LED_TO)
