"""What may act, on the page of the cluster: state, who set it and why; for those alone who may see it."""

import re
from dataclasses import replace
from html import unescape

import httpx
import pytest

from kopt.core.scheduling.overview import Overview
from kopt.core.switches import FEATURES, Alarm, Switches
from kopt.dashboard.data.access import SWITCHES, Right
from kopt.dashboard.pages.cluster.data import OVERVIEW
from kopt.dashboard.pages.cluster.switches import MOST_FLIPS, switch_lines
from tests.dashboard import cluster_objects as objects
from tests.dashboard.conftest import HOSTILE
from tests.dashboard.test_cluster_page import NOW_S, ClusterSource, pages, told

__all__ = ["pages", "told"]


async def section(pages: httpx.AsyncClient) -> str:
    html = (await pages.get("/cluster")).text
    match = re.search(r'<section[^>]*id="switches">(.*?)</section>', html, re.S)
    return unescape(match[1]) if match else ""


async def test_what_an_alarm_has_switched_off_comes_first_with_its_reason(pages: httpx.AsyncClient) -> None:
    html = await section(pages)
    rows = re.findall(r'<th scope="row">([\w-]+)', html)
    assert rows[:2] == ["profiling", "placement"]
    assert set(rows) == {feature.name for feature in FEATURES}
    first = html.partition('<th scope="row">placement')[0]
    assert '<span class="badge refused">off</span>' in first
    assert "Drift/sizing@7" in first
    assert "71.0% of the last 200 measurements" in first
    assert "100 % to 50 % by" in first
    assert "bob@example.com" in first
    assert "on 10 % of workloads" in html
    assert "first trial" in html


async def test_without_switches_there_is_no_section(told: ClusterSource, pages: httpx.AsyncClient) -> None:
    told.answer = replace(told.answer, switches=None)
    assert await section(pages) == ""
    told.answer = replace(told.answer, switches=Switches())
    assert "the installation" in await section(pages)


@pytest.mark.parametrize("text", HOSTILE)
async def test_hostile_text_stays_text(told: ClusterSource, pages: httpx.AsyncClient, text: str) -> None:
    hostile = Switches().set_by(text, "queues", 5, text, NOW_S)
    assert hostile is not None
    told.answer = replace(told.answer, switches=hostile.fall_back(text, "queues", Alarm("Drift", text, text), NOW_S))
    html = (await pages.get("/cluster")).text
    assert "queues" in html
    assert "<" not in text or text not in html


def test_only_who_may_list_them_sees_them() -> None:
    overview = objects.overview(NOW_S)

    def holds(*held: Right) -> Overview:
        return OVERVIEW.restrict(overview, lambda right: right in held)

    assert holds().switches is None
    assert holds(SWITCHES).switches == overview.switches


def test_a_long_history_is_cut() -> None:
    switches = Switches()
    for number in range(MOST_FLIPS + 3):
        switches = switches.set_by("alice", "queues", number, "x", float(number)) or switches
    (line,) = (line for line in switch_lines(switches) if line.name == "queues")
    assert [flip.at_s for flip in line.before] == [7.0, 6.0, 5.0, 4.0, 3.0]
