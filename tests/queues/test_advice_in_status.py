"""The advice stands in the status of its queue, with interval and reason, and goes when it is not known any more."""

from typing import Any

import pytest

from kopt.cluster.client.prometheus import PrometheusError
from kopt.cluster.objects.custom.kaiwo_queue import queue_of
from kopt.controllers.queues.advising import READ_S, UNREAD, Advising
from kopt.controllers.queues.status import status_of
from kopt.core.scheduling.queue_demand import HOUR_S
from kopt.core.scheduling.queue_tree import Engine
from kopt.policies.queues import QueueTree

Object = dict[str, Any]
NOW_S = 1_900_000_000.0
APPLIED = (True, "AsDeclared", "")
SINCE_S = 28 * 24 * HOUR_S


def queue(name: str, quota: int) -> Object:
    spec = {"parentQueue": "ai", "resources": {"gpu": {"quota": quota}}}
    return {"metadata": {"name": name, "generation": 1}, "spec": spec}


class Server:
    """Prometheus' answers to a range query, of queues that demand the same all the time."""

    def __init__(self, **demand: tuple[int, int]) -> None:
        self.demand, self.error, self.queries = demand, "", 0

    async def over(self, query: str, start_s: int, end_s: int, step_s: int) -> Object:
        self.queries += 1
        if self.error:
            raise PrometheusError(self.error, "Prometheus cannot be reached")
        series = [
            {
                "metric": {"queue": name, "pool": "default", "state": state},
                "values": [[at_s, str(value)] for at_s in range(start_s, end_s + 1, step_s)],
            }
            for name, (used, pending) in self.demand.items()
            for state, value in (("used", used), ("pending", pending))
        ]
        return {"data": {"result": series}}


class Controller:
    """A term with two queues of eight GPUs, one of which demands twelve and the other one."""

    def __init__(self) -> None:
        self.server = Server(short=(8, 4), spare=(1, 0))
        self.quotas = {"short": 8, "spare": 8}
        self.now_s, self.changes, self.contradicts = NOW_S, 0, False
        self.advising = Advising(self.server, SINCE_S, self.tree, self.changed, lambda: self.now_s)

    def changed(self) -> None:
        self.changes += 1

    def tree(self) -> QueueTree:
        quotas = [*self.quotas.items(), *([("short", 1)] if self.contradicts else [])]
        return QueueTree.of([queue_of(queue(name, quota)) for name, quota in quotas], [])

    def status(self, name: str, before: Object | None = None) -> Object:
        document = queue(name, self.quotas[name]) | {"status": before or {}}
        return status_of(document, Engine.KAI, (), APPLIED, self.now_s, None, self.advising.latest)


def condition(status: Object) -> tuple[str, str]:
    (found,) = [item for item in status["conditions"] if item["type"] == "Advised"]
    return found["status"], found["reason"]


async def test_who_lacks_quota_and_who_has_it_to_spare_is_on_their_objects() -> None:
    controller = Controller()
    assert await controller.advising.step() == pytest.approx(READ_S)
    (row,) = controller.status("short")["quotaAdvice"]
    assert {key: row[key] for key in row if key != "text"} == {
        "pool": "default",
        "resource": "gpu",
        "quota": "8",
        "advised": "10",
        "from": "10",
        "to": "10",
        "hoursAbove": "100%",
        "hoursAboveAdvised": "100%",
        "code": "QUOTA_SHORT",
    }
    assert "more than its quota of 8 GPUs in 100% of the hours" in row["text"]
    (other,) = controller.status("spare")["quotaAdvice"]
    assert (other["advised"], other["code"]) == ("6", "QUOTA_SPARE")
    assert condition(controller.status("spare")) == ("True", "FromHistory")


async def test_a_quota_that_was_changed_is_advised_anew_without_another_reading() -> None:
    controller = Controller()
    await controller.advising.step()
    queries = controller.server.queries
    controller.quotas = {"short": 12, "spare": 4}
    await controller.advising.step()
    (row,) = controller.status("short")["quotaAdvice"]
    assert (row["quota"], row["advised"], row["code"]) == ("12", "12", "QUOTA_FITS")
    assert controller.server.queries == queries
    assert controller.changes == 2
    await controller.advising.step()
    assert controller.changes == 2, "nothing has changed"


async def test_without_history_the_condition_says_why_and_old_advice_goes() -> None:
    controller = Controller()
    await controller.advising.step()
    before = controller.status("short")
    controller.server.error = "Unreachable"
    controller.now_s += READ_S
    await controller.advising.step()
    after = controller.status("short", before)
    assert condition(after) == ("False", "Unreachable")
    assert "quotaAdvice" not in after
    assert controller.advising.errors == 1
    controller.server.error, controller.server.demand = "", {}
    controller.now_s += READ_S
    await controller.advising.step()
    assert condition(controller.status("short")) == ("False", "NoHistory")


async def test_a_new_leader_keeps_what_the_last_one_wrote_until_it_has_read() -> None:
    controller = Controller()
    await controller.advising.step()
    before = controller.status("short")
    second = Controller()
    assert second.advising.latest is UNREAD
    assert second.status("short", before) == before


def test_without_a_prometheus_nothing_is_said() -> None:
    status = status_of(queue("short", 8), Engine.KUEUE, (), APPLIED, NOW_S)
    assert "quotaAdvice" not in status
    assert [item["type"] for item in status["conditions"]] == ["Applied"]


async def test_a_contradiction_leaves_the_last_advice() -> None:
    controller = Controller()
    await controller.advising.step()
    latest = controller.advising.latest

    controller.contradicts = True
    await controller.advising.step()
    assert controller.advising.latest is latest
