"""One leader at a time, and nothing from one who no longer is, with real processes that are stopped and killed."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from controlplane.processes import PATIENCE_S, until

from kopt.cluster.client.api import AlreadyExists, Conflict, Kube, connect
from kopt.cluster.client.resources import CONFIG_MAPS, LEASES
from kopt.cluster.runtime.lease import TERM_ANNOTATION, Deposed, Leader, LeaseSettings

from .candidate import CASE, LEASE, SETTINGS
from .faults import proxied

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
CANDIDATE = Path(__file__).with_name("candidate.py")


class Candidate:
    """A child process; ``said`` is what it printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process, self.said = process, list[str]()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.said.append(line.decode().strip())

    async def says(self, enough: Callable[[list[str]], bool]) -> None:
        def said() -> bool:
            assert self.process.returncode is None, self.said[-5:]
            return enough(self.said)

        await until(said)

    async def is_stopped(self) -> None:
        path = Path(f"/proc/{self.process.pid}/stat")
        await until(lambda: path.read_text().rpartition(")")[2].split()[0] == "T")


@pytest.fixture
async def start(control_plane: Any, kube: Kube, namespace: str) -> AsyncIterator[Callable[..., Any]]:
    """``await start(identity, stop_before)`` starts a candidate; all are killed in the end."""
    await kube.create(CONFIG_MAPS, {"metadata": {"name": CASE, "namespace": namespace}, "data": {}})
    running: list[Candidate] = []

    async def begin(identity: str, stop_before: int = 0) -> Candidate:
        command = [sys.executable, "-P", str(CANDIDATE), str(control_plane.kubeconfig), namespace, identity]
        process = await asyncio.create_subprocess_exec(*command, str(stop_before), stdout=asyncio.subprocess.PIPE)
        running.append(Candidate(process))
        return running[-1]

    yield begin
    for candidate in running:
        with contextlib.suppress(ProcessLookupError):
            candidate.process.kill()
        await candidate.process.wait()


@contextlib.asynccontextmanager
async def campaigning(leader: Leader) -> AsyncIterator[None]:
    task = asyncio.create_task(leader.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def writer(kube: Kube, namespace: str) -> str:
    return str((await kube.get(CONFIG_MAPS, CASE, namespace))["data"].get("writer"))


async def test_a_leader_that_was_stopped_in_the_middle_of_a_write_cannot_finish_it(
    start: Callable[..., Any], kube: Kube, namespace: str
) -> None:
    old = await start("old", stop_before=5)
    await old.says(lambda said: "stopping" in said)
    await old.is_stopped()
    assert old.said[-1] == "stopping"
    leader = Leader(kube, namespace, LEASE, "new", SETTINGS)
    async with campaigning(leader), leader.lead() as fence:
        case = await fence.claim(CONFIG_MAPS, await kube.get(CONFIG_MAPS, CASE, namespace))
        await fence.patch(CONFIG_MAPS, case, {"data": {"writer": "new"}})
        old.process.send_signal(signal.SIGCONT)
        await old.says(lambda said: ("deposed" in said and said[-1].startswith("sent")) or "sent: Conflict" in said)
        await asyncio.sleep(1.0)
        after = old.said[old.said.index("stopping") + 1 :]
        # The write that was on its way reaches the API server, which refuses it, and there is no other.
        assert sorted(after) in (["deposed", "sent: Conflict"], ["conflict", "deposed", "sent: Conflict"])
        assert await writer(kube, namespace) == "new"


@pytest.mark.long
async def test_a_leader_that_was_stopped_anywhere_writes_nothing_afterwards(
    start: Callable[..., Any], kube: Kube, namespace: str
) -> None:
    old = await start("old")
    for round_number in range(3):
        await old.says(lambda said: said.count("wrote") > 5)
        old.process.send_signal(signal.SIGSTOP)
        leader = Leader(kube, namespace, LEASE, f"new-{round_number}", SETTINGS)
        async with campaigning(leader), leader.lead() as fence:
            case = await fence.claim(CONFIG_MAPS, await kube.get(CONFIG_MAPS, CASE, namespace))
            version = (await fence.patch(CONFIG_MAPS, case, {"data": {"writer": "new"}}))["metadata"]["resourceVersion"]
            old.process.send_signal(signal.SIGCONT)
            # It may still say "wrote" of a write that was answered before the stop: the object alone shows what it did.
            await old.says(lambda said: "deposed" in said)
            assert (await kube.get(CONFIG_MAPS, CASE, namespace))["metadata"]["resourceVersion"] == version
        old.said.clear()


@pytest.mark.long
async def test_another_takes_over_from_one_that_was_killed(
    start: Callable[..., Any], kube: Kube, namespace: str
) -> None:
    first = await start("first")
    await first.says(lambda said: "wrote" in said)
    second = await start("second")
    await asyncio.sleep(SETTINGS.duration_s + 1)
    assert second.said == []
    first.process.kill()
    await second.says(lambda said: "wrote" in said)
    one, other = (int(leader.said[0].removeprefix("leads ")) for leader in (first, second))
    assert other == one + 1


async def test_a_leader_that_leaves_hands_over_at_once(kube: Kube, namespace: str) -> None:
    slow = LeaseSettings(duration_s=3600, renew_within_s=20, retry_s=0.1)
    first, second = (Leader(kube, namespace, LEASE, name, slow) for name in ("first", "second"))
    async with campaigning(second):
        async with campaigning(first):
            await until(lambda: first.leading or second.leading)
            winner, other = (first, second) if first.leading else (second, first)
            assert not other.leading
            assert winner.holder == winner.identity
        if winner is first:
            # Long before the Lease would have ended.
            async with asyncio.timeout(PATIENCE_S), second.lead() as fence:
                assert fence.term == first.term + 1


@pytest.mark.long
async def test_terms_of_a_deleted_lease_are_older_than_those_of_the_next(kube: Kube, namespace: str) -> None:
    """What its leaders marked would otherwise belong to a later term for ever, and nobody could write it."""
    terms = []
    for name in ("before", "after"):
        leader = Leader(kube, namespace, LEASE, name, SETTINGS)
        async with campaigning(leader), leader.lead():
            terms.append(leader.term)
        await kube.delete(LEASES, LEASE, namespace)
        # Terms of a new Lease are told apart by the second.
        await asyncio.sleep(1.1)
    assert terms == sorted(set(terms))


async def test_at_no_time_do_two_lead(kube: Kube, namespace: str) -> None:
    leaders = [Leader(kube, namespace, LEASE, f"c-{number}", SETTINGS) for number in range(5)]
    async with contextlib.AsyncExitStack() as stack:
        for leader in leaders:
            await stack.enter_async_context(campaigning(leader))
        ends_s, led = time.monotonic() + 5, set[str]()
        while time.monotonic() < ends_s:
            leading = {leader.identity for leader in leaders if leader.leading}
            assert len(leading) <= 1
            led |= leading
            await asyncio.sleep(0.005)
        assert led
        await kube.delete(LEASES, LEASE, namespace)
        await until(lambda: any(leader.leading for leader in leaders))


@pytest.mark.long
async def test_a_leader_cut_off_from_the_api_server_stops_before_the_next_begins(
    control_plane: Any, kube: Kube, namespace: str, tmp_path: Path
) -> None:
    async with proxied(control_plane.kubeconfig, tmp_path) as (proxy, through), connect(through) as cut_off:
        old, new = Leader(cut_off, namespace, LEASE, "old", SETTINGS), Leader(kube, namespace, LEASE, "new", SETTINGS)
        async with campaigning(old):
            silent = asyncio.Event()

            async def lead_until_cut_off() -> None:
                async with old.lead():
                    proxy.stall()
                    silent.set()
                    await asyncio.sleep(60)

            ruling = asyncio.create_task(lead_until_cut_off())
            await silent.wait()
            async with campaigning(new), asyncio.timeout(PATIENCE_S):
                while not new.leading:
                    await asyncio.sleep(0.002)
                assert not old.leading
            with pytest.raises(Deposed):
                await ruling
            assert new.term == old.term + 1
            proxy.flow()


async def test_a_fence_refuses_what_is_not_its_own(kube: Kube, namespace: str) -> None:
    leader = Leader(kube, namespace, LEASE, "one", SETTINGS)
    made = await kube.create(CONFIG_MAPS, {"metadata": {"name": CASE, "namespace": namespace}, "data": {"a": "1"}})
    async with campaigning(leader), leader.lead() as fence:
        claimed = await fence.claim(CONFIG_MAPS, made)
        assert claimed["metadata"]["annotations"][TERM_ANNOTATION] == f"{namespace}/{LEASE}/{leader.term}"
        assert await fence.claim(CONFIG_MAPS, claimed) is claimed
        for write in (
            fence.patch(CONFIG_MAPS, made, {"data": {"a": "2"}}),
            fence.replace(CONFIG_MAPS, made),
            fence.delete(CONFIG_MAPS, made),
        ):
            with pytest.raises(Conflict):
                await write
        with pytest.raises(AlreadyExists):
            await fence.create(CONFIG_MAPS, {"metadata": {"name": CASE, "namespace": namespace}})
        with pytest.raises(ValueError, match="needs a name"):
            await fence.create(CONFIG_MAPS, {"metadata": {"generateName": "x-", "namespace": namespace}})
        later = {"metadata": {"annotations": {TERM_ANNOTATION: f"{namespace}/{LEASE}/{leader.term + 1}"}}}
        other = await kube.patch(CONFIG_MAPS, CASE, later, namespace)
        with pytest.raises(Deposed):
            await fence.patch(CONFIG_MAPS, other, {"data": {"a": "3"}})
    with pytest.raises(Deposed):
        await fence.delete(CONFIG_MAPS, claimed)


@pytest.mark.parametrize("times", [(15, 15, 2), (15, 10, 10), (15, 10, 0), (0.5, 0.4, 0.1)])
def test_times_that_would_let_two_lead_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="renew_within_s < duration_s"):
        LeaseSettings(*times)
