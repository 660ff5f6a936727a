"""Interruptions of spot nodes as the meter's database shows them, and what ``kopt cost spot`` makes of them."""

import json
import time
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.controllers.meter.spot_nodes import spot_nodes
from kopt.controllers.meter.store import CostStore
from kopt.core.cost.metering import Capacity, Milliseconds, Offer, Rule, Segment
from kopt.policies.cost import Changes
from kopt.policies.cost.interruptions import Interruptions, SpotNode, interruptions
from kopt.policies.cost.spot_rates import Spell
from kopt.serving.base.database.opening import Location

HOUR_MS = 3_600_000
SPOT = Offer("H100-SXM5-80GB", "nebius", "", "spot")
LISTED = Offer("H100-SXM5-80GB", "nebius")
NOW_MS = int(time.time()) * 1000
BEGAN_MS = NOW_MS - 100 * HOUR_MS


class Ledger:
    """A meter's database, filled by the hour."""

    def __init__(self, where: Location) -> None:
        self.store = CostStore(where)
        self.store.begin("test", Rule.MAX)

    def node(self, name: str, begin: float, end: float | None, *pods: tuple[float, float], offer: Offer = SPOT) -> None:
        """A node with eight GPUs that pods held between these hours, and which was idle otherwise."""
        segments = [
            Segment(name, f"{name}-{i}", at(first), at(last), 8000, offer) for i, (first, last) in enumerate(pods)
        ]
        segments.append(Segment(name, "idle:unallocated", at(begin), None if end is None else at(end), 1, offer))
        capacity = Capacity(name, name, at(begin), None if end is None else at(end), 8000, offer)
        self.store.store("test", Changes(segments, [capacity], [], []), NOW_MS)

    def counted(self, since_hours: float = 100) -> list[Interruptions]:
        window = self.store.window(NOW_MS - int(since_hours * HOUR_MS), NOW_MS)
        return interruptions(spot_nodes(self.store, window), window.end_ms)


def at(hours: float) -> Milliseconds:
    return BEGAN_MS + int(hours * HOUR_MS)


@pytest.fixture
def ledger(where: Location) -> Iterator[Ledger]:
    result = Ledger(where)
    yield result
    result.store.close()


def test_a_node_that_goes_while_it_is_used_was_interrupted(ledger: Ledger) -> None:
    ledger.node("taken", 0, 10, (1, 4), (3, 9.97))
    ledger.node("removed-by-an-autoscaler", 12, 20, (12, 19))
    ledger.node("still-there", 30, None, (31, 35))
    ledger.node("never-used", 40, 41)
    ledger.node("on-demand", 0, 10, (0, 10), offer=LISTED)
    (counted,) = ledger.counted()
    assert counted.offer == SPOT
    assert counted.count == 1
    assert counted.busy_s == pytest.approx((8.97 + 7 + 4) * 3600)
    assert counted.away == (Spell(2 * 3600.0, True),), "until another node of the offer came"


def test_what_has_not_come_back_yet_is_an_outage_until_now(ledger: Ledger) -> None:
    ledger.node("taken", 0, 90, (0, 90))
    (counted,) = ledger.counted()
    assert counted.away == (Spell(10 * 3600.0, False),)


def test_what_was_before_the_window_does_not_count(ledger: Ledger) -> None:
    ledger.node("taken", 0, 40, (0, 40))
    ledger.node("next", 41, None, (41, 100))
    (counted,) = ledger.counted(since_hours=50)
    assert (counted.count, counted.busy_s) == (0, pytest.approx(50 * 3600))
    assert len(ledger.counted(since_hours=100)[0].away) == 1


def test_a_node_that_gets_another_offer_while_it_is_used_was_not_interrupted(ledger: Ledger) -> None:
    named = Offer(SPOT.model, SPOT.provider, "eu-north1", "spot")
    ledger.node("n", 0, 1, (0, 1))
    ledger.node("n", 1, None, (1, 10), offer=named)
    assert {each.offer: (each.count, each.busy_s) for each in ledger.counted()} == {
        SPOT: (0, 3600.0),
        named: (0, 9 * 3600.0),
    }


def test_times_in_which_pods_share_a_node_count_once() -> None:
    node = SpotNode(SPOT, 0, None, [(0, 10), (5, 20), (30, 40), (32, 35)])
    assert node.busy_ms == 30
    assert not node.interrupted


def test_the_command_reads_what_the_meter_has_seen(
    ledger: Ledger, where: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(where, str):
        monkeypatch.setenv("KOPT_DATABASE_URL", where)
    else:
        monkeypatch.setenv("KOPT_HOME", str(where.parent))
    for number in range(9):
        ledger.node(f"n{number}", 10 * number, 10 * number + 9, (10 * number, 10 * number + 9))
    words = ["cost", "spot", "--gpu", "h100", "--provider", "nebius", "--run-time", "24h"]
    seen = CliRunner().invoke(app, words)
    assert seen.exit_code == 0, seen.output
    assert "The meter saw 9 interruptions in 3.38 days of use of 9 spot nodes" in " ".join(seen.output.split())
    given = CliRunner().invoke(app, [*words, "--interruptions", "9", "--over", "81h", "-o", "json"])
    assert json.loads(CliRunner().invoke(app, [*words, "-o", "json"]).stdout) == json.loads(given.stdout)
    planned = json.loads(CliRunner().invoke(app, [*words, "--deadline", "48h", "-o", "json"]).stdout)
    assert planned["use_spot"] is True
    assert [step["work_seconds"] for step in planned["plan"]] == [86400, 43200, 21600]
    for step in planned["plan"]:
        # Spot capacity leaves room for what an interruption loses; what comes too late for that is not waited for.
        assert step["wait_while_hours_left"] >= step["spot_while_hours_left"] > step["work_seconds"] / 3600 + 0.5
    narrow = CliRunner().invoke(app, [*words, "--deadline", "24h"])
    assert narrow.exit_code == 2
    other = CliRunner().invoke(app, [*words[:3], "a100-80gb", *words[4:]])
    assert other.exit_code == 1
    four = json.loads(CliRunner().invoke(app, [*words, "--nodes", "4", "-o", "json"]).stdout)
    assert four["hazard_per_hour"] == pytest.approx(4 * 9 / 81)


@pytest.mark.parametrize(
    "words",
    [["--interruptions", "3"], ["--over", "3d"], ["--outage", "1h"], ["--lost", "5m", "--job", "a/b", "--over", "1d"]],
)
def test_options_that_belong_together(words: list[str]) -> None:
    done = CliRunner().invoke(
        app, ["cost", "spot", "--gpu", "h100", "--provider", "nebius", "--run-time", "24h", *words]
    )
    assert done.exit_code == 2
