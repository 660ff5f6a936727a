"""An API server that is away while a node is waited for, and one that refuses."""

from dataclasses import replace
from typing import Any, cast

import pytest

from kopt.cli.sharing.apply import Application, ApplySettings
from kopt.cluster.client.errors import ApiError, Forbidden, Unreachable
from kopt.core.sharing.change import ChangeOutcome, ReplicaState, SharingChange
from kopt.core.sharing.modes import SharingMode
from kopt.policies.fractions.applying import NodeState

BEFORE = ReplicaState(None, SharingMode.EXCLUSIVE)
AFTER = ReplicaState("kopt-time-slicing-4", SharingMode.TIME_SLICING, 4)
CHANGE = SharingChange(BEFORE, AFTER, 2, ("plugin", "configurations"), False, 1.0)
SETTINGS = ApplySettings(settle_s=0, poll_s=0, outage_s=5)


class Labelled:
    """A node with its new label, of which reads fail as listed, then say that it offers what was planned."""

    name, uid = "n", "u"

    def __init__(self, *failures: ApiError) -> None:
        self.failures, self.reads = list(failures), 0

    async def read(self, change: SharingChange) -> NodeState:
        self.reads += 1
        if self.failures:
            raise self.failures.pop(0)
        return NodeState(AFTER.label, True, 8, is_configured=True, holds=True)

    def outcome_of(self, change: SharingChange) -> ChangeOutcome:
        return change.outcome

    async def finish(self, change: SharingChange, outcome: ChangeOutcome, ended_s: float, reason: str) -> SharingChange:
        return replace(change, outcome=outcome, ended_s=ended_s, reason=reason)


def application(node: Labelled, said: list[str]) -> Application:
    made = Application(cast(Any, None), cast(Any, node), SETTINGS, said.append, is_recorded=True)
    made._events = cast(Any, Silent())
    return made


class Silent:
    def record(self, *_: object) -> None: ...

    async def flush(self) -> None: ...


@pytest.mark.parametrize(
    "error", [Unreachable("refused"), ApiError(503, "Unavailable", "later"), ApiError(429, "", "")]
)
async def test_an_api_server_that_is_away_for_a_while_takes_nothing_back(error: ApiError) -> None:
    node, said = Labelled(error), list[str]()
    ended = await application(node, said).apply(CHANGE)
    assert (ended.outcome, node.reads) == (ChangeOutcome.APPLIED, 2)
    assert said == [f"the API server does not answer: {error}"]


async def test_one_that_refuses_is_not_waited_for() -> None:
    node = Labelled(Forbidden(403, "Forbidden", "no"))
    with pytest.raises(Forbidden):
        await application(node, [])._read(CHANGE)
    assert node.reads == 1
