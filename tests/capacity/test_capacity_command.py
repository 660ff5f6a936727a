"""``kopt capacity`` on what a real Prometheus has scraped of queues over weeks."""

import json
import math
import time
from collections.abc import Iterator

import pytest
from prometheus_server import RunningPrometheus
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.core.scheduling.queue_tree import DEMAND_METRIC

WEEK_S = 7 * 86_400
pytestmark = pytest.mark.services


def scraped(weeks: int) -> str:
    """A pool that doubles in a quarter, one that stays, and one that began two weeks ago."""
    now_s = time.time() // 3600 * 3600
    samples: dict[tuple[str, str, str], list[str]] = {}
    for hour in range(weeks * 168):
        at_s = now_s - (weeks * 168 - hour) * 3600
        daily = 1 + 0.3 * math.sin(hour / 24 * math.tau)
        growing = 20 * 2 ** (hour / 168 / 13) * daily
        values = {
            ("research", "a100", "used"): min(growing, 48.0),
            ("research", "a100", "pending"): max(0, growing - 48),
        }
        values |= {("serving", "h100", "used"): 10 * daily, ("serving", "h100", "pending"): 0.0}
        if hour >= (weeks - 2) * 168:
            values |= {("new", "l4", "used"): 1.0, ("new", "l4", "pending"): 0.0}
        for (queue, pool, state), value in values.items():
            labels = f'queue="{queue}",pool="{pool}",state="{state}"'
            line = f"{DEMAND_METRIC}{{{labels}}} {value:.3f} {at_s:.0f}"
            samples.setdefault((queue, pool, state), []).append(line)
    lines = [line for series in samples.values() for line in series]
    return "\n".join([f"# TYPE {DEMAND_METRIC} gauge", *lines, "# EOF", ""])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = RunningPrometheus(tmp_path_factory.mktemp("prometheus"), scraped(26))
    yield server.url
    server.stop()


ALL = ["--gpus", "a100=48", "--gpus", "h100=32", "--gpus", "l4=4"]


def test_a_growing_pool_is_bought_for_and_a_steady_one_is_not(prometheus: str) -> None:
    result = CliRunner().invoke(app, ["capacity", "--prometheus", prometheus, *ALL, "-o", "json"])
    assert result.exit_code == 0, result.output
    rows = {row["pool"]: row for row in json.loads(result.stdout)["pools"]}
    growing, steady, new = rows["a100"], rows["h100"], rows["l4"]
    codes = ["CAPACITY_SHORT", "CAPACITY_ENOUGH", "CAPACITY_HISTORY_TOO_SHORT"]
    assert [growing["code"], steady["code"], new["code"]] == codes
    # 20 GPUs doubled twice and .3 above that in its best hours of a day.
    assert 85 <= growing["last_week"] <= 105
    assert growing["buy"] >= growing["last_week"] - 48
    assert growing["order_by"] <= growing["short_from"]
    assert 8 <= steady["needed"] <= 18
    assert steady["buy"] == 0
    assert len(growing["weeks"]) == 13
    assert growing["weeks"][0]["p5"] < growing["weeks"][0]["p95"]


def test_the_table_names_the_shortest_pool_first_and_what_it_goes_by(prometheus: str) -> None:
    result = CliRunner().invoke(app, ["capacity", "--prometheus", prometheus, *ALL], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    assert lines[1].split()[0] == "a100" or any(line.split()[:1] == ["a100"] for line in lines[:4])
    assert "13 weeks ahead" in result.output


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--gpus", "a100"], "POOL=NUMBER"),
        (["--gpus", "a10=4"], "a100, h100, l4"),
        (["--weeks", "27"], "less than or equal to 26"),
        (["--delivery", "soon"], "soon"),
    ],
)
def test_wrong_usage_names_what_is_meant(prometheus: str, options: list[str], word: str) -> None:
    result = CliRunner().invoke(app, ["capacity", "--prometheus", prometheus, *options])
    assert result.exit_code == 2
    assert word in " ".join(result.output.replace("│", "").split())


def test_a_prometheus_that_does_not_answer_is_one_line() -> None:
    result = CliRunner().invoke(app, ["capacity", "--prometheus", "http://127.0.0.1:9"])
    assert result.exit_code == 1
    assert "Traceback" not in result.output
