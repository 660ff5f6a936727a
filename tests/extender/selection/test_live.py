"""The policy in force over time: use is read in the background, and every status says what holds."""

from typing import Any, cast

import pytest

from kopt.cluster.client.prometheus import PrometheusError
from kopt.cluster.client.resources import NODE_SELECTION_POLICIES
from kopt.cluster.objects.custom.node_selection_policy import StoredPolicy, stored_of
from kopt.cluster.runtime.informer import Change, ChangeKind
from kopt.cluster.workloads.placement.node_use import history_of, usage_query
from kopt.controllers.extender.selection.live import LiveSelection
from kopt.policies.placement.fleet import Fleet
from tests.attacks.api_in_memory import MemoryKube
from tests.extender.selection.test_weights import document
from tests.extender.test_books import node

Object = dict[str, Any]
Series = list[tuple[dict[str, str], float]]


class Replica:
    """One replica's part, on a fleet with nodes a, b and c; ``answer`` is what Prometheus answers or raises."""

    def __init__(self, answer: Series | PrometheusError | None = None, *, leads: bool = True) -> None:
        self.fleet, self.kube, self.now_s, self.asked = Fleet(), MemoryKube(), 0.0, list[str]()
        for name in "abc":
            self.fleet.set_node(name, node(name))
        self.policies: dict[tuple[str, str], StoredPolicy] = {}
        self.answer = answer
        self.live = LiveSelection(
            cast(Any, self.kube),
            self.fleet,
            self.policies,
            query=None if answer is None else self._query,
            leading=lambda: leads,
            clock=lambda: self.now_s,
        )

    async def _query(self, text: str) -> Series:
        self.asked.append(text)
        assert self.answer is not None
        if isinstance(self.answer, PrometheusError):
            raise self.answer
        return self.answer

    def put(self, policy: Object) -> None:
        stored = stored_of(self.kube.put(NODE_SELECTION_POLICIES, policy))
        self.policies["", stored.name] = stored
        self.live.changed(Change(ChangeKind.UPDATED, ("", stored.name), None, stored))

    def delete(self, name: str) -> None:
        self.live.changed(Change(ChangeKind.DELETED, ("", name), self.policies.pop(("", name)), None))

    def _stored(self, name: str) -> Object:
        found = self.kube.find(NODE_SELECTION_POLICIES, name)
        assert found is not None
        return found

    async def look(self, name: str = "fleet") -> dict[str, tuple[str, str, str]]:
        """One round; the conditions of a policy afterwards."""
        await self.live.once()
        # As the informer shows them.
        self.policies.update({key: stored_of(self._stored(key[1])) for key in self.policies})
        status = self._stored(name).get("status") or {} if self.policies else {}
        conditions = status.get("conditions") or ()
        return {item["type"]: (item["status"], item["reason"], item["message"]) for item in conditions}


def use(**shares: float) -> Series:
    return [({"node": name}, share) for name, share in shares.items()]


async def test_use_is_read_when_it_is_weighed_and_once_a_minute() -> None:
    replica = Replica(use(a=0.5, b=0.1, c=0.2))
    await replica.look()
    replica.put(document())
    assert (await replica.look())["UtilisationMeasured"][:2] == ("Unknown", "NotWeighed")
    assert replica.asked == []
    replica.put(document(utilisationHistory=2))
    assert (await replica.look())["UtilisationMeasured"][:2] == ("True", "Measured")
    assert replica.asked == [usage_query(3600.0)]
    replica.now_s = 59.0
    await replica.look()
    assert len(replica.asked) == 1
    replica.now_s = 60.0
    await replica.look()
    assert len(replica.asked) == 2
    replica.put(document(utilisationHistory=2, window="2h"))
    await replica.look()
    assert replica.asked[2:] == [usage_query(7200.0)]
    replica.delete("fleet")
    await replica.look()
    assert (replica.fleet.selection, dict(replica.fleet.history.of)) == (None, {})


async def test_without_an_answer_the_last_one_counts_for_as_long_as_the_window() -> None:
    replica = Replica(use(a=0.5, b=0.1, c=0.2))
    replica.put(document(utilisationHistory=2))
    await replica.look()
    replica.answer, replica.now_s = PrometheusError("Timeout", "Prometheus gave no answer within 10 s"), 3000.0
    said = (await replica.look())["UtilisationMeasured"]
    assert said[:2] == ("False", "Timeout")
    assert said[2].startswith("Use cannot be read: Prometheus gave no answer within 10 s.")
    assert replica.fleet.history.of["a"] == 0.5
    replica.now_s = 3700.0
    await replica.look()
    assert replica.fleet.history.of == {}
    replica.answer, replica.now_s = use(a=0.4, b=0.1, c=0.2), 3800.0
    assert (await replica.look())["UtilisationMeasured"][0] == "True"


@pytest.mark.parametrize(
    ("answer", "reason", "words"),
    [
        (None, "NoPrometheus", "set extender.prometheus.url of the chart"),
        ([], "NoSeries", "load the rules of `kopt alerts rules`"),
        (use(a=0.5), "SomeNodesUnmeasured", "The use of 2 of 3 nodes is not known over the last 60 min"),
    ],
    ids=["no Prometheus", "no series", "two nodes without"],
)
async def test_the_status_says_what_is_missing(answer: Series | None, reason: str, words: str) -> None:
    replica = Replica(answer)
    replica.put(document(utilisationHistory=2))
    status, found, message = (await replica.look())["UtilisationMeasured"]
    assert (status, found) == ("False", reason)
    assert words in message
    # Every node is as good as any other for a part that is not known of any.
    assert len(set(replica.fleet.pools["nvidia.com/gpu"].state.utilisation[:3])) == 1 or answer


async def test_who_does_not_lead_measures_and_writes_nothing() -> None:
    replica = Replica(use(a=0.5), leads=False)
    replica.put(document(utilisationHistory=2))
    assert await replica.look() == {}
    assert replica.fleet.history.of == {"a": 0.5}


async def test_a_policy_that_cannot_be_meant_says_what_to_write() -> None:
    replica = Replica()
    replica.put(document("broken", created="2026-01-01T00:00:00Z", healthy=3))
    replica.put(document())
    status, reason, message = (await replica.look("broken"))["Accepted"]
    assert (status, reason) == ("False", "Invalid")
    assert message.startswith(
        "spec.weights.healthy is no field of a NodeSelectionPolicy; there are utilisationHistory,"
    )
    assert message.endswith("Until then NodeSelectionPolicy fleet is in force.")
    assert (await replica.look())["Accepted"][:2] == ("True", "InForce")


async def test_a_status_that_holds_is_not_written_again() -> None:
    replica = Replica(use(a=0.5))
    replica.put(document(utilisationHistory=2))
    await replica.look()
    first = replica.policies["", "fleet"].version
    replica.now_s = 600.0
    await replica.look()
    assert replica.policies["", "fleet"].version == first


def test_shares_that_no_node_can_have_are_brought_into_range() -> None:
    series: Series = [({"node": "a"}, 1.2), ({"node": "b"}, float("nan")), ({}, 0.5), ({"node": "c"}, -0.1)]
    assert history_of(series, 60.0).of == {"a": 1.0, "c": 0.0}
