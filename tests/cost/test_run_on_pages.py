"""What a training cost by epoch, on the page of costs, by ``GET /v1/cost/run``, in Python and by the command."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgi_server import served
from cryptography.fernet import Fernet
from pages_source import FixedSource
from playwright.async_api import expect
from typer.testing import CliRunner

import kopt
from kopt.cli.main import app as command
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data.feed import Connections
from kopt.dashboard.data.histories import FolderHistories
from kopt.dashboard.data.records import Records
from kopt.dashboard.data.served import Served
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.data.sources import Endpoint, Snapshot
from kopt.dashboard.login.routes import Login
from kopt.dashboard.login.sessions import Sessions
from kopt.dashboard.pages.cost.data import COSTS, CostState
from kopt.formats.joblog.epochs import Epoch
from kopt.policies.cost.documents import run_document, run_of
from kopt.policies.cost.epochs import EpochCost
from kopt.policies.cost.run import RunCost
from kopt.sdk.cost import CostError, run_cost
from kopt.serving.checkpoint.service import CheckpointService
from kopt.serving.client.blocking import PredictionClient
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.endpoint.app import create_app as endpoint_app
from kopt.serving.endpoint.assemble import Parts, assemble
from tests.cli.endpoints import Nothing
from tests.cost.metered import HOUR_MS, filled
from tests.cost.test_epochs import log_of
from tests.dashboard.conftest import serve_pages
from tests.dashboard.test_browser import CONTRAST, browser, open_page, overflow
from tests.dashboard.test_login import KnownUsers

__all__ = ["browser", "open_page", "serve_pages"]
ADDRESS = "http://127.0.0.1:8701"
RUN = "/v1/cost/run?since=2d&row="
WORKLOADS = {"team-a": "train", "team-b": "eval"}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One that follows the jobs of two teams, whose logs name two epochs."""
    folder = tmp_path_factory.mktemp("endpoint")
    parts = assemble(Settings(home=folder), Parts(Nothing(), refresh_s=3600))
    parts.service(CheckpointService).refresh()
    path = Path(log_of(folder, int(time.time() * 1000) - 10 * HOUR_MS))
    with served(endpoint_app(parts, manage=False)) as url, PredictionClient(url, deadline_s=30.0) as client:
        for team, name in WORKLOADS.items():
            texts = [line.partition(" ") for line in path.read_text(encoding="utf-8").splitlines()]
            lines = [{"text": rest, "at": datetime.fromisoformat(at).timestamp()} for at, _, rest in texts]
            client.checkpoint({"job": f"{team}/{name}", "source": f"{name}-0/main", "first": 1, "lines": lines})
        yield url
    parts.stop()


@pytest.fixture(scope="module")
def state_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], CostState]]:
    """What the feed of costs has, with an endpoint at an address."""
    costs = filled(tmp_path_factory.mktemp("costs") / "cost.db")

    def read(url: str) -> CostState:
        client = AsyncPredictionClient(url, deadline_s=5.0)
        histories = FolderHistories(Path("/nowhere"))
        reader = COSTS.open(
            Connections(
                histories, client, None, None, Served(client), url, Path("/nowhere"), time.time, 5.0, Records(costs)
            )
        )
        asyncio.run(reader.refresh())
        return asyncio.run(reader.latest())

    yield read
    costs.store.close()


def app_of(state: CostState, home: Path, *, with_login: bool = False) -> Any:
    login = Login(KnownUsers(), Sessions(Fernet.generate_key().decode(), secure=False), "kopt") if with_login else None
    source = FixedSource({SNAPSHOT: Snapshot({}, Endpoint(ADDRESS), 1.9e9), COSTS: state})
    return create_app(Settings(home=home), source=source, login=login)


@pytest.fixture
def state(endpoint: str, state_of: Callable[[str], CostState]) -> CostState:
    return state_of(endpoint)


async def get(state: CostState, home: Path, path: str, token: str = "") -> httpx.Response:
    app = app_of(state, home, with_login=bool(token))
    headers = {"authorization": f"Bearer {token}"} if token else {}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=ADDRESS, headers=headers) as client:
        return await client.get(path)


def test_page_program_notebook_and_command_say_the_same(
    state: CostState, tmp_path: Path, serve_pages: Callable[[Any], str]
) -> None:
    address = serve_pages(app_of(state, tmp_path))
    run = kopt.run_cost("eval", address, since="2d")
    first, second = run.epochs
    assert run.workload == "team-b/jobs/eval"
    assert (first.epoch, second.epoch, run.whole.epoch) == (1, 2, None)
    # Two GPUs for an hour, of nine.
    assert [first.gpu_hours, second.gpu_hours, run.whole.gpu_hours] == pytest.approx([2, 2, 18], rel=0.01)
    assert first.samples_per_unit == pytest.approx(80 * 3_600 / ((first.micro or 0) / 1e6), rel=0.01)
    page = httpx.get(f"{address}/cost?by=workload&since=2d&row=team-b/jobs/eval").text
    html = run._repr_html_()
    for shown in (f"{(item.micro or 0) / 1e6:,.2f} USD" for item in (*run.epochs, run.whole)):
        assert shown in page
        assert shown in html
    asked = ["cost", "run", "eval", "--server", address, "--since", "2d", "-o", "json"]
    result = CliRunner().invoke(command, asked)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["epochs"]
    assert [row["micro"] for row in rows] == [item.micro for item in (*run.epochs, run.whole)]
    result = CliRunner().invoke(command, [*asked, "--log", "train.log"])
    assert result.exit_code == 2
    with pytest.raises(CostError, match="404: no workload is called 'nothing'; there are team-a/deployments/serve"):
        run_cost("nothing", address, since="2d")


async def test_everybody_sees_their_own_runs_alone(state: CostState, tmp_path: Path) -> None:
    own = await get(state, tmp_path, f"{RUN}train", "token-of-a")
    assert (own.status_code, own.json()["workload"]) == (200, "team-a/jobs/train")
    assert len(own.json()["epochs"]) == 3
    for row in ("eval", "team-b/jobs/eval", "nothing"):
        hidden = await get(state, tmp_path, f"{RUN}{row}", "token-of-a")
        assert hidden.status_code == 404
        assert "team-b/" not in hidden.text.replace(f"'{row}'", "")
    refused = await get(state, tmp_path, f"{RUN}eval&namespace=team-b", "token-of-a")
    assert refused.status_code == 403
    page = (await get(state, tmp_path, "/cost?by=workload&since=2d&row=team-b/jobs/eval", "token-of-a")).text
    assert "by epoch" not in page
    assert (await get(state, tmp_path, f"{RUN}eval", "token-of-root")).status_code == 200
    assert (await get(state, tmp_path, f"{RUN}eval", "guessed")).status_code == 401


@pytest.mark.parametrize("query", ["row=", "row=eval&by=pod", "row=eval&limit=3", f"row={'x' * 1025}", "row=a&since=x"])
async def test_what_cannot_be_asked_of_a_run_is_refused(state: CostState, tmp_path: Path, query: str) -> None:
    assert (await get(state, tmp_path, f"/v1/cost/run?{query}")).status_code == 400


async def test_an_endpoint_that_is_away_leaves_the_whole_run(
    state_of: Callable[[str], CostState], tmp_path: Path
) -> None:
    away = await asyncio.to_thread(state_of, "http://127.0.0.1:9")
    document = (await get(away, tmp_path, f"{RUN}eval")).json()
    assert [row["epoch"] for row in document["epochs"]] == ["all"]
    assert "The endpoint does not say which epochs it has read" in document["remarks"][0]
    page = await get(away, tmp_path, "/cost?by=workload&since=2d&row=team-b/jobs/eval")
    assert "The endpoint does not say which epochs" in page.text
    assert 'id="epochs-chart"' not in page.text


async def test_a_job_that_was_made_anew_is_another_run(tmp_path: Path) -> None:
    now_ms = int(time.time() * 1000)
    pods = [
        ("x", "team-b", "other-a", "jobs/other", "n2", 1, {}, "x"),
        ("a", "team-a", "job-a", "jobs/job", "n1", 4, {}, "1111-old"),
        ("y", "team-b", "other-b", "jobs/other", "n2", 1, {}, "x"),
        ("b", "team-a", "job-b", "jobs/job", "n1", 2, {}, "2222-new"),
    ]
    costs = filled(tmp_path / "cost.db", pods, now_ms)
    start_s = now_ms / 1000 - 7 * 3600

    async def epochs_of(job: str) -> dict[str, list[Epoch]]:
        assert job == "team-a/job"
        # Both run at these times: only their pods tell whose epochs they are.
        return {
            f"agent/job-{pod}/main": [Epoch(number, start_s + 3600 * number, start_s + 3600 * (number + 1))]
            for pod, number in (("a", 1), ("b", 2))
        }

    state = CostState(costs, costs.recorded(), epochs_of=epochs_of)
    latest, old = [(await get(state, tmp_path, f"{RUN}job{run}")).json() for run in ("", "&run=1111")]
    assert (latest["run"], old["run"], latest["runs"]) == ("2222-new", "1111-old", ["1111-old", "2222-new"])
    assert [row["epoch"] for row in latest["epochs"]] == ["2", "all"]
    assert [row["epoch"] for row in old["epochs"]] == ["1", "all"]
    assert latest["epochs"][0]["gpu_hours"] == pytest.approx(2, rel=1e-3)
    assert old["epochs"][0]["gpu_hours"] == pytest.approx(4, rel=1e-3)
    assert "2 runs have this name" in latest["remarks"][0]
    assert (await get(state, tmp_path, f"{RUN}job&run=3")).status_code == 404
    page = (await get(state, tmp_path, "/cost?by=workload&since=2d&row=team-a/jobs/job&run=1111-old")).text
    assert page.count("by epoch") == 1
    assert "run=2222-new" in page
    costs.store.close()


def test_a_run_is_read_back_as_it_was_and_others_are_refused() -> None:
    epochs = (EpochCost(1, 0, 10, 0.5, 7, "USD", 3, 2.5, None), EpochCost(1, 10, 20, 0.5, None, "USD"))
    run = RunCost("n/jobs/<b>", epochs, EpochCost(None, 0, 30, 1.5, 9, "USD", 3), ("<i>remark</i>",))
    assert run_of(json.loads(json.dumps(run_document(run)))) == run
    html = run._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<i>" not in html
    for broken in ({}, {"epochs": []}, {**run_document(run), "epochs": [{"epoch": "x"}]}):
        with pytest.raises(ValueError, match="no run's cost"):
            run_of({"workload": "", "currency": "", "remarks": [], **broken})


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
async def test_a_reader_goes_from_a_workload_to_its_epochs(
    state: CostState,
    tmp_path: Path,
    serve_pages: Callable[[Any], str],
    open_page: Callable[..., Any],
    scheme: str,
    width: int,
) -> None:
    watched = await open_page(color_scheme=scheme, viewport={"width": width, "height": 844})
    page = watched.page
    await page.goto(f"{serve_pages(app_of(state, tmp_path))}/cost?by=workload&since=2d")
    await page.get_by_role("link", name="team-b/jobs/eval").click()
    await expect(page.locator("#epochs-chart.drawn")).to_be_visible(timeout=30_000)
    assert await page.locator("#epochs-chart .bars .point").count() == 2
    assert await page.locator("#epochs tbody tr").count() == 3
    assert await page.evaluate(CONTRAST) == []
    assert await overflow(page) <= 0
    assert watched.errors == []
