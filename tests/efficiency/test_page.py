"""The page of efficiency: its picture closes, its reader sees what they may, and Prometheus may be slow or away."""

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.gpu_hours import ClusterStep, GpuHourHistory
from kopt.dashboard.data.access import pods_in
from kopt.dashboard.data.feed import Connections
from kopt.dashboard.data.gpu_hours import GpuHoursError
from kopt.dashboard.pages.efficiency.data import DAY_S, EFFICIENCY, WINDOWS_S, Efficiency
from kopt.dashboard.pages.efficiency.view import HEIGHT, MOST_COLUMNS, WIDTH, efficiency_page
from tests.efficiency.made_hours import history_of, state


def test_the_index_its_factors_and_every_gpu_hour_stand_on_it() -> None:
    page = efficiency_page(state("team-a"), "24h", "namespace")
    # 9 of 10 can be used, 8 of 9 that are wanted are held, half of them compute.
    assert page.index == "40.0"
    assert [value for _, value, _ in page.factors] == ["90.0 %", "88.9 %", "50.0 %"]
    assert {part.name: part.gpu_hours for part in page.parts} == {
        "used": "72.0",
        "held and unused": "72.0",
        "held and not measured": "0.0",
        "free while work waited": "18.0",
        "free": "0.0",
        "unavailable": "18.0",
    }
    assert [(row.name, row.efficiency, row.waited) for row in page.rows] == [
        ("other", "0 %", "18.0"),
        ("team-a", "80 %", "0.0"),
    ]
    assert page.covered == "Only 18 h of the last 24 h were recorded, a sample every 30 min."


def test_a_gap_stays_a_gap() -> None:
    page = efficiency_page(state("team-a"), "24h", "kind")
    assert len(page.columns) == 36
    assert page.line.count("M") == 2
    assert page.begin == "2030-03-16 18:30 UTC"


@given(st.sampled_from([1800, 3600, 7200, 86_400]), st.integers(1, 400))
def test_columns_fill_the_picture_from_the_ground_up(step_s: int, count: int) -> None:
    history = history_of("a")
    steps = tuple(ClusterStep(10, 9, 9, 8, 8, 4, 1.9e9 - step_s * index) for index in reversed(range(count)))
    whole = GpuHourHistory(step_s, step_s * count, steps, history.by_workload, {}, {})
    page = efficiency_page(Efficiency({"24h": whole}, True), "24h", "kind")
    assert len(page.columns) == min(count, MOST_COLUMNS)
    for column in page.columns:
        assert [block.style for block in column.blocks] == ["unavailable", "wanted", "unused", "used"]
        assert [block.y for block in column.blocks] == pytest.approx([0, 10, 20, 60], abs=0.1)
        assert all(block.y + block.height == pytest.approx(HEIGHT) for block in column.blocks)
        assert all(block.x >= 0 and block.x + block.width <= WIDTH + 0.1 for block in column.blocks)


def test_who_may_list_some_pods_sees_their_namespaces_and_nothing_of_the_cluster() -> None:
    everything = state("team-a")
    seen = EFFICIENCY.restrict(everything, lambda right: right == pods_in("team-a"))
    page = efficiency_page(seen, "24h", "namespace")
    assert [row.name for row in page.rows] == ["team-a"]
    assert (page.index, page.parts, page.columns, page.efficiency.hides) == (None, (), (), True)
    assert "10" not in repr(seen.histories["24h"].steps[0].installed)
    assert EFFICIENCY.restrict(everything, lambda _: True) == everything


class Server:
    """Answers when it is let, or fails."""

    def __init__(self) -> None:
        self.may_answer, self.failure, self.windows = threading.Event(), "", list[float]()

    def history(self, window_s: float) -> GpuHourHistory:
        assert self.may_answer.wait(20)
        self.windows.append(window_s)
        if self.failure:
            raise GpuHoursError(self.failure)
        return history_of("a")


async def test_a_slow_server_is_read_in_the_background_and_one_that_is_away_is_named() -> None:
    server, now_s = Server(), [0.0]
    connections: Any = dict.fromkeys(Connections.__dataclass_fields__)
    connections |= {"home": Path(), "clock": lambda: now_s[0], "gpu_hours": server}
    reader = cast(Any, EFFICIENCY.open(Connections(**connections)))
    await reader.refresh()
    await reader.refresh()
    assert (await reader.latest()).configured
    assert not (await reader.latest()).histories
    server.may_answer.set()
    await reader.background.task
    assert server.windows == list(WINDOWS_S.values())
    assert set((await reader.latest()).histories) == set(WINDOWS_S)
    await reader.refresh()
    await asyncio.sleep(0)
    assert len(server.windows) == 3, "ten minutes are the same"
    now_s[0], server.failure = 700.0, "it does not answer"
    await reader.refresh()
    await reader.background.task
    latest = await reader.latest()
    assert (latest.problem, set(latest.histories)) == ("it does not answer", set(WINDOWS_S)), "what came before stays"
    assert server.windows[3:] == [DAY_S]
