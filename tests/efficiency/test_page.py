"""The page of efficiency: its picture closes, its reader sees what they may, and Prometheus may be slow or away."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.hardware.pools import ClusterPools
from kopt.core.workload.gpu_hours import ClusterStep, GpuHourHistory
from kopt.dashboard.data.access import pods_in
from kopt.dashboard.data.feed import Connections
from kopt.dashboard.data.gpu_hours import GpuHoursError
from kopt.dashboard.data.records import Records
from kopt.dashboard.data.utilisation import UtilisationError
from kopt.dashboard.pages.efficiency.data import DAY_S, EFFICIENCY, WINDOWS_S, Efficiency
from kopt.dashboard.pages.efficiency.view import HEIGHT, MOST_COLUMNS, WIDTH, efficiency_page
from kopt.policies.cost.attribution import UNATTRIBUTED
from kopt.policies.efficiency.busy_counts import PoolUse, day_of
from kopt.policies.efficiency.groups import GONE
from tests.conformance.test_pages import ADDRESS, answer
from tests.efficiency.made_hours import days_of, history_of, state


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
    connections |= {"home": Path(), "clock": lambda: now_s[0], "records": Records(gpu_hours=server)}
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


POOLS = ClusterPools({}, {"n1": "h100"}, {"team-a": "language"}, ready=True, problems=("namespaces are old",))


def with_pools(pools: ClusterPools | None = POOLS) -> Efficiency:
    return replace(state("team-a"), pools=pools)


def rows(efficiency: Efficiency, by: str) -> dict[str, tuple[str, str]]:
    return {row.name: (row.allocated, row.efficiency) for row in efficiency_page(efficiency, "24h", by).rows}


def test_teams_are_those_of_namespaces_and_pools_those_of_nodes_as_the_command_has_them() -> None:
    assert rows(with_pools(), "team") == {"language": ("90.0", "80 %"), UNATTRIBUTED: ("54.0", "0 %")}
    assert rows(with_pools(), "pool") == {"h100": ("144.0", "50 %")}
    assert rows(with_pools(replace(POOLS, of_nodes={})), "pool") == {GONE: ("144.0", "50 %")}


def test_without_a_cluster_or_before_it_is_read_teams_and_pools_are_not_made_up() -> None:
    for pools, text in ((None, "have no cluster"), (ClusterPools(), "is being read")):
        for by in ("team", "pool"):
            page = efficiency_page(with_pools(pools), "24h", by)
            assert text in page.missing
            assert not page.rows
        assert len(rows(with_pools(pools), "kind")) == 2


def test_who_may_list_some_pods_sees_their_teams_and_no_pool() -> None:
    other = replace(POOLS, teams={"team-a": "language", "other": "secret"})
    restricted = EFFICIENCY.restrict(with_pools(other), lambda right: right == pods_in("team-a"))
    assert rows(restricted, "team") == {"language": ("90.0", "80 %")}
    assert "secret" not in repr(restricted)
    assert "n1" not in repr(restricted.pools)
    page = efficiency_page(restricted, "24h", "pool")
    assert (page.rows, "may list the pods of every namespace" in page.missing) == ((), True)


@pytest.mark.parametrize("by", ["team", "pool"])
async def test_the_address_names_them_and_says_what_is_wrong_with_the_cluster(by: str) -> None:
    text = (await answer({EFFICIENCY: with_pools()}, httpx.URL(f"{ADDRESS}/efficiency?by={by}"))).text
    assert {"team": "language", "pool": "h100"}[by] in text
    assert "namespaces are old" in text
    kinds = (await answer({EFFICIENCY: with_pools()}, httpx.URL(f"{ADDRESS}/efficiency?by=kind"))).text
    assert "namespaces are old" not in kinds
    assert f'id="by-{by}"' in kinds


class Cluster:
    def __init__(self) -> None:
        self.reads, self.now = 0, ClusterPools()

    async def pools(self) -> ClusterPools:
        self.reads += 1
        return self.now


async def test_pools_are_read_again_at_once_until_they_are_known_and_then_now_and_then() -> None:
    server, cluster, now_s = Server(), Cluster(), [0.0]
    server.may_answer.set()
    connections: Any = dict.fromkeys(Connections.__dataclass_fields__)
    connections |= {"home": Path(), "clock": lambda: now_s[0], "records": Records(gpu_hours=server), "cluster": cluster}
    reader = cast(Any, EFFICIENCY.open(Connections(**connections)))
    await reader.refresh()
    await reader.background.task
    cluster.now = POOLS
    for _ in range(3):
        await reader.refresh()
    assert (cluster.reads, (await reader.latest()).pools) == (2, POOLS)
    assert set((await reader.latest()).histories) == set(WINDOWS_S)
    now_s[0] = 61.0
    await reader.refresh()
    assert cluster.reads == 3


def test_pools_over_months_are_bars_by_day_and_a_gap_stays_one() -> None:
    picture = efficiency_page(state("h100"), "24h", "kind").over_months
    (pool,) = picture.pools
    assert (pool.name, pool.gpus, pool.p50, pool.p95) == ("h100", "4.0", "10 %", "89 %")
    assert (picture.begin, picture.end) == ("2029-12-18", "2030-03-17")
    assert [bar.x for bar in pool.bars] == [870, 890]
    assert [(bar.p50, bar.p95) for bar in pool.bars] == [pytest.approx((10, 89.5), abs=0.6)] * 2
    assert pool.bars[0].tooltip == "2030-03-15: p50 10 %, p95 89 % of 4.0 GPUs"


def test_pools_over_months_are_shown_to_who_may_list_all_pods() -> None:
    seen = EFFICIENCY.restrict(state("secret"), lambda right: right == pods_in("team-a"))
    assert (seen.days, efficiency_page(seen, "24h", "kind").over_months.pools) == ((), ())
    assert EFFICIENCY.restrict(state("secret"), lambda _: True).days


class Stored:
    def __init__(self) -> None:
        self.failure, self.since_s = "", list[float]()

    def days(self, since_s: float) -> list[PoolUse]:
        self.since_s.append(since_s)
        if self.failure:
            raise UtilisationError(self.failure)
        return list(days_of("h100"))


async def test_pools_over_months_need_no_prometheus_and_stay_while_the_database_is_away() -> None:
    stored, now_s = Stored(), [1.9e9]
    connections: Any = dict.fromkeys(Connections.__dataclass_fields__)
    connections |= {"home": Path(), "clock": lambda: now_s[0], "records": Records(utilisation=stored)}
    reader = cast(Any, EFFICIENCY.open(Connections(**connections)))
    await reader.refresh()
    await reader.background_of_days.task
    stored.failure, now_s[0] = "it does not answer", 1.9e9 + 700
    await reader.refresh()
    await reader.background_of_days.task
    latest = await reader.latest()
    assert (latest.days, latest.days_problem) == (days_of("h100"), "it does not answer")
    assert stored.since_s == [day_of(1_900_000_000) - 89 * DAY_S] * 2
    text = (await answer({EFFICIENCY: latest}, httpx.URL(f"{ADDRESS}/efficiency"))).text
    assert "These pages have no Prometheus" in text
    assert "it does not answer" in text
    assert "2030-03-17: p50 10 %, p95 89 % of 4.0 GPUs" in text
