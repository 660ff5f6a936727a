"""Killed at any call of the driver and any write of the journal, a node ends as planned or as before."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nvml_standin.executors import DIED, NOW_S, OWN, Node

from kopt.agents.node_executor.executor import Executor, Outcome, Phase
from kopt.agents.node_executor.journal import JournalError
from kopt.core.node_plan.steps import Step

BEFORE = [("1g.10gb", 0, True), ("3g.40gb", 4, True)]
AFTER = [("1g.10gb", 1, True), ("1g.20gb", 2, True), ("3g.40gb", 4, True)]
OTHER = [("7g.80gb", 0, True)]


@pytest.fixture
def steps(node: Node) -> tuple[Step, ...]:
    """A node with two instances on its first GPU; the steps change both GPUs."""
    first = (node.mode(0, enabled=True), node.create(0, "3g.40gb", 4), node.create(0, "1g.10gb", 0))
    assert node.handle(node.signed(*first)).phase is Phase.APPLIED
    node.devices.reset_faults()
    return (
        node.destroy(0, "1g.10gb", 0),
        node.create(0, "1g.20gb", 2),
        node.mode(1, enabled=True),
        node.create(1, "7g.80gb", 0),
        node.create(0, "1g.10gb", 1),
    )


CALLS = 2 + 2 + 1 + 2 + 2
"""Of the driver: an instance and its compute instance each, one of a mode."""
IN_PART = {("kill_after", call) for call in (1, 3, 6, 8)} | {("kill_before", call) for call in (2, 4, 7, 9)}
"""Between the two calls of a step: it is done in part, and everything is undone."""


def is_before(node: Node) -> bool:
    gpu = node.devices.state.gpus[1]
    return (node.devices.layout(0), node.devices.layout(1), gpu.mode, gpu.pending) == (BEFORE, [], 0, 0)


def is_after(node: Node) -> bool:
    return (node.devices.layout(0), node.devices.layout(1), node.devices.state.gpus[1].mode) == (AFTER, OTHER, 1)


def settled(node: Node) -> Phase:
    """What the next executor makes of it."""
    node.devices.reset_faults()
    outcome = node.recover()
    assert outcome is not None
    assert node.recover() is None
    return outcome.phase


@pytest.mark.parametrize("when", ["kill_before", "kill_after"])
@pytest.mark.parametrize("call", range(1, CALLS + 1))
def test_killed_at_each_call_of_the_driver(node: Node, steps: tuple[Step, ...], when: str, call: int) -> None:
    document = node.signed(*steps, sequence=2)
    setattr(node.devices.state, when, call)
    assert node.in_child(lambda: node.handle(document)) == DIED
    phase = settled(node)
    assert is_after(node) if phase is Phase.APPLIED else is_before(node)
    assert phase is (Phase.ROLLED_BACK if (when, call) in IN_PART else Phase.APPLIED)


def killing(monkeypatch: pytest.MonkeyPatch, name: str, at: int, when: str) -> None:
    """The process dies at the call ``at`` of ``os.name``: before it, after it, or in the middle of a write."""
    plain, count = getattr(os, name), 0

    def call(*arguments: object, **options: object) -> object:
        nonlocal count
        count += 1
        if count == at and when == "in":
            plain(arguments[0], arguments[1][: len(arguments[1]) // 2])
        if count == at and when != "after":
            os.kill(os.getpid(), signal.SIGKILL)
        result = plain(*arguments, **options)
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    monkeypatch.setattr(os, name, call)


WRITES = [("write", when, at) for at in range(1, 8) for when in ("before", "in", "after")]
SYNCS = [("fsync", when, at) for at in range(1, 9) for when in ("before", "after")]
RENAMES = [("rename", when, 1) for when in ("before", "after")]


@pytest.mark.parametrize(("call", "when", "at"), WRITES + SYNCS + RENAMES)
def test_killed_at_each_write_of_the_journal(
    node: Node, steps: tuple[Step, ...], monkeypatch: pytest.MonkeyPatch, call: str, when: str, at: int
) -> None:
    document = node.signed(*steps, sequence=2)
    with monkeypatch.context() as patched:
        killing(patched, call, at, when)
        assert node.in_child(lambda: node.handle(document)) == DIED
    node.devices.reset_faults()
    outcome = node.recover()
    if outcome is None:
        # The plan had not begun, or had ended.
        assert is_before(node) or is_after(node)
        assert node.handle(document).phase is Phase.APPLIED
    else:
        assert outcome.phase is Phase.APPLIED
    assert is_after(node)
    # What was torn has not damaged what came after it.
    assert node.recover() is None
    assert sorted(path.name for path in node.journal.iterdir()) == ["journal", "lock"]


@pytest.mark.parametrize("at", range(1, 8))
def test_a_full_disk_stops_it_where_it_can_go_on(
    node: Node, steps: tuple[Step, ...], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    document = node.signed(*steps, sequence=2)
    plain, count = os.write, 0

    def write(file: int, content: bytes) -> int:
        nonlocal count
        count += 1
        return plain(file, content if count < at else content[: len(content) // 2])

    def work(executor: Executor) -> Outcome:
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", write)
            with pytest.raises(JournalError, match="No space left"):
                executor.handle(document, OWN)
        return executor.recover() or executor.handle(document, OWN)

    outcome = node.run(work)
    assert outcome is not None
    assert outcome.phase is Phase.APPLIED
    assert is_after(node)
    assert node.recover() is None


def _ways_of_rolling_back() -> Iterator[tuple[int, str, int]]:
    for failed in (4, 7, 9):
        for call in range(1, 8):
            for when in ("kill_before", "kill_after"):
                yield failed, when, failed + call


@pytest.mark.parametrize(("failed", "when", "call"), list(_ways_of_rolling_back()))
def test_killed_while_it_rolls_back(node: Node, steps: tuple[Step, ...], failed: int, when: str, call: int) -> None:
    document = node.signed(*steps, sequence=2)
    node.devices.state.fail_at, node.devices.state.fail_with = failed, 999
    setattr(node.devices.state, when, call)
    if node.in_child(lambda: node.handle(document)) == DIED:
        assert settled(node) is Phase.ROLLED_BACK
    assert is_before(node)


def test_an_interrupted_plan_that_has_expired_is_undone(node: Node, steps: tuple[Step, ...]) -> None:
    document = node.signed(*steps, sequence=2)
    node.devices.state.kill_after = 5
    assert node.in_child(lambda: node.handle(document)) == DIED
    node.now_s = NOW_S + 601
    assert settled(node) is Phase.ROLLED_BACK
    assert is_before(node)


def test_an_interrupted_plan_whose_key_is_not_trusted_any_more_is_undone(node: Node, steps: tuple[Step, ...]) -> None:
    document = node.signed(*steps, sequence=2)
    node.devices.state.kill_after = 5
    assert node.in_child(lambda: node.handle(document)) == DIED
    node.key = Ed25519PrivateKey.generate()
    assert settled(node) is Phase.ROLLED_BACK
    assert is_before(node)


def test_a_node_that_others_changed_meanwhile_is_returned_to_the_state_before(
    node: Node, steps: tuple[Step, ...]
) -> None:
    document = node.signed(*steps, sequence=2)
    node.devices.state.kill_after = 2
    assert node.in_child(lambda: node.handle(document)) == DIED
    node.devices.reset_faults()
    node.hardware.apply(node.create(0, "2g.20gb", 0))
    assert settled(node) is Phase.ROLLED_BACK
    assert is_before(node)


def test_the_journal_is_private_and_outlives_the_process(node: Node, steps: tuple[Step, ...]) -> None:
    files = {path.name: path.stat().st_mode & 0o777 for path in Path(node.journal).iterdir()}
    assert files == {"journal": 0o600, "lock": 0o600}
    assert node.journal.stat().st_mode & 0o077 == 0
