"""Takes the README's picture of the cluster page, of a made-up day: ``python tests/dashboard/cluster_picture.py``."""

import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from asgi_server import served  # noqa: E402
from cluster_objects import overview, pool_of  # noqa: E402
from cluster_objects import pool as made_up  # noqa: E402
from pages_source import FixedSource  # noqa: E402
from screenshots import ARGUMENTS, CHROMIUM, save  # noqa: E402

from kopt.core.settings import Settings  # noqa: E402
from kopt.dashboard.app import create_app  # noqa: E402
from kopt.dashboard.data.snapshot import SNAPSHOT  # noqa: E402
from kopt.dashboard.data.sources import Endpoint, Snapshot  # noqa: E402
from kopt.dashboard.pages.cluster.data import OVERVIEW  # noqa: E402


def source() -> FixedSource:
    """A cluster with one pool that takes GPUs back."""
    now_s = time.time()
    pools = (pool_of(made_up("chat", now_s, reclaiming=True)),)
    snapshot = Snapshot({}, Endpoint("http://127.0.0.1:8700"), now_s)
    return FixedSource({SNAPSHOT: snapshot, OVERVIEW: overview(now_s, pools=pools)})


def take() -> None:
    app = create_app(Settings(home=Path("/nowhere")), source=source())
    with served(app, lifespan="off") as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1280, "height": 1560}, color_scheme="light", timezone_id="Etc/UTC")
        page.goto(f"{address}/cluster")
        page.wait_for_selector(".chart.drawn")
        save(page, "cluster.png")
        browser.close()


if __name__ == "__main__":
    take()
