"""Streams from an API server that are cut anywhere, fall silent or begin anew bring every line once."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web
from cluster.faults import FaultProxy
from controlplane.processes import PATIENCE_S, until
from hypothesis import given
from hypothesis import strategies as st
from logtail_endpoint import Endpoint

from kopt.agents.logtail.jobs import Jobs, JobSettings
from kopt.agents.logtail.offset_store import OffsetStore
from kopt.agents.logtail.rate_limit import PaceSettings
from kopt.agents.logtail.sender import SenderSettings
from kopt.agents.logtail.streams import Instance, Records, StreamSource
from kopt.cluster.client.api import Kube
from kopt.cluster.client.credentials import Credentials

JOB, SOURCE, KEY = "research/llama", "llama-0/trainer", "uid/trainer"
QUICK = JobSettings(sender=SenderSettings(linger_s=0.01, first_pause_s=0.01, longest_pause_s=0.05))
UNHURRIED = PaceSettings(lines_per_second=1e6, burst=1e6)
BEGIN_S = 1_772_359_200


@dataclass
class Container:
    """A container's log as a kubelet serves it: only of the present file, whole records from a whole second on."""

    records: list[tuple[int, bytes]] = field(default_factory=list)
    """Nanoseconds, content."""
    before: list[tuple[int, bytes]] = field(default_factory=list)
    """Of the run before."""
    begun: bytes = b""
    """The start of a record that is being written."""
    begun_ns: int = 0
    running: bool = True
    exists: bool = True
    rotated: int = 0
    """Records in front of this one are in a file that is not served any more."""
    asked: int = 0
    now_ns: int = BEGIN_S * 10**9
    lines: list[str] = field(default_factory=list)
    """What was printed, as lines."""

    def print(self, text: str, after_ns: int = 10**6) -> None:
        self.now_ns += after_ns
        content = self.begun + text.encode()
        self.records.append((self.begun_ns if self.begun else self.now_ns, content))
        self.begun = b""
        self.lines += text.split("\r")

    def begin(self, text: str) -> None:
        self.begun, self.begun_ns = text.encode(), self.now_ns
        *ended, _ = text.split("\r")
        self.lines += ended

    def restart(self) -> None:
        self.before, self.records, self.rotated = self.records, [], 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if not self.exists:
            return web.json_response({"kind": "Status", "reason": "NotFound", "message": "no pod"}, status=404)
        assert request.query["timestamps"] == "true"
        since = request.query.get("sinceTime", "1970-01-01T00:00:00Z")
        since_ns = int(datetime.strptime(since, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()) * 10**9
        response = web.StreamResponse()
        await response.prepare(request)
        previous = request.query.get("previous") == "true"
        records, at = (self.before, 0) if previous else (self.records, self.rotated)
        half = 0
        while True:
            if records is not (self.before if previous else self.records):
                return response
            while at < len(records):
                when, content = records[at]
                at += 1
                if when >= since_ns:
                    rest = content[half:] if half else stamp(when) + b" " + content
                    await response.write(rest + b"\n")
                half = 0
            if len(self.begun) > half and not previous and self.begun_ns >= since_ns:
                await response.write(self.begun[half:] if half else stamp(self.begun_ns) + b" " + self.begun)
                half = len(self.begun)
            if previous or not self.running:
                return response
            await asyncio.sleep(0.005)


def stamp(at_ns: int) -> bytes:
    second = datetime.fromtimestamp(at_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{second}.{at_ns % 10**9:09d}Z".encode()


class Anonymous:
    def __init__(self, url: str) -> None:
        self._credentials = Credentials(url, "", None)

    async def credentials(self) -> Credentials:
        return self._credentials

    async def renew(self) -> Credentials:
        return self._credentials


@dataclass
class Scene:
    container: Container
    proxy: FaultProxy
    endpoint: Endpoint
    kube: Kube

    @property
    def got(self) -> list[str]:
        return self.endpoint.lines(JOB, SOURCE)

    async def whole(self) -> None:
        """Every line that was printed is there, once, with its number."""
        await until(lambda: len(self.got) >= len(self.container.lines), what=f"{len(self.container.lines)} lines")
        assert self.got == self.container.lines
        assert self.endpoint.numbers(JOB, SOURCE) == list(range(1, len(self.container.lines) + 1))

    async def left_alone(self) -> None:
        """Nobody asks for the log any more; one request may have been on its way."""
        async with asyncio.timeout(PATIENCE_S):
            asked = -1
            while asked != self.container.asked:
                asked = self.container.asked
                await asyncio.sleep(2.0)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    container = Container()
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/research/pods/llama-0/log", container.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    proxy = await FaultProxy(port).start()
    kube = Kube(Anonymous(f"http://127.0.0.1:{proxy.port}"))
    yield Scene(container, proxy, Endpoint(), kube)
    await kube.close()
    await proxy.stop()
    await runner.cleanup()


@contextlib.asynccontextmanager
async def following(scene: Scene, state: Path | None = None, restarts: int = 0) -> AsyncIterator[StreamSource]:
    async with scene.endpoint.client() as client:
        jobs = Jobs(client.checkpoint, OffsetStore(state), QUICK)
        task = asyncio.create_task(jobs.run())
        await jobs.started()
        instance = Instance("research", "llama-0", "trainer", restarts)
        source = StreamSource(scene.kube, instance, SOURCE, KEY, lambda: 0.0, jobs.offsets.position(KEY))
        jobs.follow(JOB, source)
        try:
            yield source
            jobs.offsets.save()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_lines_have_the_runtimes_times(scene: Scene) -> None:
    async with following(scene):
        scene.container.print("step 1")
        scene.container.print("10%\r20%")
        await scene.whole()
    assert list(scene.endpoint.at[JOB, SOURCE].values()) == pytest.approx([BEGIN_S + 0.001, *[BEGIN_S + 0.002] * 2])


@pytest.mark.parametrize("seed", range(6))
async def test_cut_again_and_again_nothing_is_lost_or_repeated(scene: Scene, seed: int) -> None:
    generator = random.Random(seed)
    async with following(scene):
        for n in range(200):
            # Many lines of one nanosecond, of one second, and seconds without any.
            scene.container.print(f"step {n}", generator.choice([0, 0, 10**3, 10**8, 3 * 10**9]))
            if generator.random() < 0.2:
                await asyncio.sleep(0.005)
            if n % 40 == 20:
                asked = scene.container.asked
                scene.proxy.cut()
                if generator.random() < 0.7:
                    await until(lambda before=asked: scene.container.asked > before)
        await scene.whole()
    assert scene.endpoint.repeated == 0, "what came again was known before it was sent"
    assert scene.container.asked >= 3


async def test_cut_in_the_middle_of_a_line_it_is_not_said_twice(scene: Scene) -> None:
    async with following(scene):
        scene.container.print("step 1")
        scene.container.begin("10%\r20%\r30")
        await until(lambda: len(scene.got) == 3)
        scene.proxy.cut()
        await until(lambda: scene.container.asked == 2)
        scene.proxy.cut()
        await until(lambda: scene.container.asked == 3)
        scene.container.begun += b"%\r40"
        scene.container.print("%\r50%", 0)
        scene.container.lines[3:] = ["30%", "40%", "50%"]
        await scene.whole()
    assert scene.endpoint.repeated == 0


async def test_rotated_while_nobody_listened_it_goes_on_with_what_is_there(scene: Scene) -> None:
    async with following(scene):
        for n in range(20):
            scene.container.print(f"step {n}", 1)
        await scene.whole()
        scene.proxy.refuse()
        scene.proxy.cut()
        # Fifteen of those that were seen are in another file now, and two lines are new.
        scene.container.rotated = 15
        scene.container.print("after", 1)
        scene.container.print("the rotation", 10**6)
        scene.proxy.refuse(False)
        await scene.whole()


async def test_a_restarted_container_is_read_to_its_end_and_then_from_its_beginning(scene: Scene) -> None:
    async with following(scene) as source:
        scene.container.print("step 1")
        await scene.whole()
        scene.proxy.refuse()
        scene.proxy.cut()
        scene.container.print("Killed")
        scene.container.restart()
        scene.container.print("starting", 10**9)
        source.follow(Instance("research", "llama-0", "trainer", 1))
        scene.proxy.refuse(False)
        await scene.whole()
        scene.container.restart()
        scene.container.print("starting again", 10**9)
        source.follow(Instance("research", "llama-0", "trainer", 2))
        await scene.whole()


async def test_the_agent_is_killed_and_goes_on(scene: Scene, tmp_path: Path) -> None:
    for n in range(5):
        async with following(scene, tmp_path / "state.json"):
            for i in range(20):
                scene.container.print(f"step {n}.{i}", [0, 10**8][i % 2])
            await scene.whole()
            # What was acknowledged is told after the answer.
            await asyncio.sleep(0.05)
        if n == 2:
            (tmp_path / "state.json").write_text("torn")
    assert scene.endpoint.conflicting == 0


async def test_a_deleted_pod_ends_its_stream_and_a_finished_one_is_read_to_its_end(scene: Scene) -> None:
    async with following(scene) as source:
        scene.container.print("step 1")
        await scene.whole()
        scene.container.print("done")
        scene.container.running = False
        source.finish()
        await scene.whole()
        await scene.left_alone()
        asked = scene.container.asked
    async with following(scene):
        scene.container.running = True
        await until(lambda: scene.container.asked > asked)
        scene.container.exists = False
        scene.proxy.cut()
        asked = scene.container.asked
        await until(lambda: scene.container.asked > asked)
        await scene.left_alone()


async def test_while_the_endpoint_is_away_the_stream_waits_and_little_is_held(scene: Scene) -> None:
    scene.endpoint.gate = asyncio.Event()
    settings = replace(QUICK.sender, job_bytes=200_000)
    async with scene.endpoint.client(deadline_s=0.2) as client:
        jobs = Jobs(client.checkpoint, OffsetStore(None), replace(QUICK, sender=settings, pace=UNHURRIED))
        task = asyncio.create_task(jobs.run())
        await jobs.started()
        source = StreamSource(scene.kube, Instance("research", "llama-0", "trainer"), SOURCE, KEY, lambda: 0.0)
        # Nothing has to be asked first.
        source.fresh = False
        jobs.follow(JOB, source)
        for n in range(40_000):
            scene.container.print(f"step {n} {'x' * 100}", 10**4)
        await until(lambda: jobs.budget.used >= 200_000)
        await until(lambda: jobs.counters.failures > 2)
        assert jobs.budget.used < 2_000_000
        scene.endpoint.gate.set()
        await scene.whole()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


RECORDS = st.lists(
    st.tuples(st.sampled_from([0, 0, 1, 10**9]), st.sampled_from([b"a", b"", b"1\r2", b"x" * 50])),
    min_size=1,
    max_size=30,
)


@given(RECORDS, st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60)), max_size=6))
def test_wherever_a_stream_is_cut_and_however_it_comes_the_lines_are_the_same(
    records: list[tuple[int, bytes]], cuts: list[tuple[int, int]]
) -> None:
    now_ns, timed = BEGIN_S * 10**9, []
    for after_ns, content in records:
        now_ns += after_ns
        timed.append((now_ns, stamp(now_ns) + b" " + content + b"\n"))
    whole = Records()
    wanted = whole.feed(b"".join(text for _, text in timed))
    read, found = Records(), []
    for length, size in [*cuts, (1 << 20, 17)]:
        since_ns = (read.since_s or 0) * 10**9
        stream = b"".join(text for at, text in timed if at >= since_ns)[:length]
        read.connect()
        for at in range(0, len(stream), size):
            found += read.feed(stream[at : at + size])
    assert found == wanted
    assert read.number == whole.number
    mark = read.position
    assert mark is not None
    again = Records(mark["number"], mark["since"])
    again.connect()
    told = again.feed(b"".join(text for at, text in timed if at >= mark["since"] * 10**9))
    assert told == wanted[mark["number"] - 1 :]


def test_a_second_with_more_lines_than_can_be_remembered_is_not_repeated() -> None:
    lines = [stamp(BEGIN_S * 10**9 + n) + f" line {n}\n".encode() for n in range(30_000)]
    read = Records()
    assert len(read.feed(b"".join(lines))) == 30_000
    read.connect()
    assert read.feed(b"".join(lines)) == []
    (more,) = read.feed(stamp(BEGIN_S * 10**9 + 40_000) + b" more\n")
    assert more.text == "more"
    assert read.number == 30_002
