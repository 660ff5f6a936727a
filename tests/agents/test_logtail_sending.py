"""Lines reach the endpoint once and in their order, whatever becomes of the endpoint and of this process; meanwhile
memory is bounded and reading waits."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from controlplane.processes import until
from logtail_endpoint import Down, Endpoint

from kopt.agents.logtail.file_events import Notices
from kopt.agents.logtail.following import FileSource
from kopt.agents.logtail.jobs import Jobs, JobSettings
from kopt.agents.logtail.log_paths import Files
from kopt.agents.logtail.offset_store import OffsetStore
from kopt.agents.logtail.rate_limit import PaceSettings
from kopt.agents.logtail.sender import Post, SenderSettings

JOB, SOURCE = "research/llama", "llama-0/trainer"
QUICK = JobSettings(sender=SenderSettings(linger_s=0.01, first_pause_s=0.01, longest_pause_s=0.05))


class Agent:
    """What runs while the block runs; ``log`` is the file that it follows."""

    def __init__(self, jobs: Jobs, notices: Notices) -> None:
        self.jobs, self.notices = jobs, notices

    def follow(self, path: Path, job: str = JOB, source: str = SOURCE) -> FileSource:
        made = FileSource(path, source, self.notices, self.jobs.offsets.position(str(path)), plain=True)
        self.jobs.follow(job, made)
        return made


@contextlib.asynccontextmanager
async def running(post: Post, state: Path | None = None, settings: JobSettings = QUICK) -> AsyncIterator[Agent]:
    """An agent that is killed at the end of the block: what it knows is in its file, or nowhere."""
    jobs, notices = Jobs(post, OffsetStore(state), settings), Notices(sweep_s=0.05)
    tasks = [asyncio.create_task(jobs.run()), asyncio.create_task(notices.run())]
    await jobs.started()
    try:
        yield Agent(jobs, notices)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "train.log"


def write(path: Path, first: int, last: int) -> list[str]:
    lines = [f"step {n} loss 0.{n}" for n in range(first, last + 1)]
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))
    return lines


def arrived(endpoint: Endpoint, count: int, job: str = JOB, source: str = SOURCE) -> Callable[[], bool]:
    return lambda: len(endpoint.lines(job, source)) >= count


async def test_lines_come_with_their_numbers_and_with_the_gpus(endpoint: Endpoint, log: Path) -> None:
    async with endpoint.client() as client, running(client.checkpoint) as agent:
        agent.jobs.set_gpus(JOB, "pod", 8.0)
        agent.follow(log)
        lines = write(log, 1, 2500)
        await until(arrived(endpoint, 2500))
    assert endpoint.lines(JOB, SOURCE) == lines
    assert endpoint.numbers(JOB, SOURCE) == list(range(1, 2501))
    assert max(len(one["lines"]) for one in endpoint.requests) <= 1000
    assert {one["gpus"] for one in endpoint.requests} == {8.0}
    assert endpoint.repeated == 0


async def test_a_job_that_prints_nothing_is_asked_about(endpoint: Endpoint, log: Path) -> None:
    settings = replace(QUICK, sender=replace(QUICK.sender, ask_s=0.05))
    async with endpoint.client() as client, running(client.checkpoint, settings=settings) as agent:
        agent.follow(log)
        await until(lambda: len(endpoint.requests) > 3)
    assert {tuple(one["lines"]) for one in endpoint.requests} == {()}
    assert all("first" not in one and one["job"] == JOB for one in endpoint.requests)


async def test_while_nothing_is_answered_reading_stops_and_then_nothing_is_missing(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.gate = asyncio.Event()
    settings = replace(
        QUICK,
        sender=replace(QUICK.sender, job_bytes=300_000, all_bytes=1_000_000),
        pace=PaceSettings(lines_per_second=5000, burst=2000, patience_s=1.0),
    )
    written = {}
    async with endpoint.client(deadline_s=1.0) as client, running(client.checkpoint, settings=settings) as agent:
        for n in range(20):
            path = tmp_path / f"rank{n}.log"
            written[n] = write(path, 1, 8_000)
            agent.follow(path, f"research/job-{n}", "a/b")
        await until(lambda: agent.jobs.budget.used >= 1_000_000)
        await until(lambda: agent.jobs.counters.failures > 20)
        assert agent.jobs.budget.used < 2_000_000
        assert sum(one.sender.down for one in agent.jobs.jobs.values()) >= 3
        endpoint.gate.set()
        await until(lambda: all(arrived(endpoint, 8_000, f"research/job-{n}", "a/b")() for n in range(20)))
        await until(lambda: agent.jobs.budget.used == 0)
        assert agent.jobs.counters.skipped == 0
    for n in range(20):
        assert endpoint.lines(f"research/job-{n}", "a/b") == written[n]


async def test_what_the_endpoint_asks_to_wait_is_waited(endpoint: Endpoint, log: Path) -> None:
    post = Down(endpoint, failures=1, retry_after_s=0.3)
    begun_s = asyncio.get_running_loop().time()
    async with running(post) as agent:
        agent.follow(log)
        await until(lambda: post.calls >= 2)
        assert asyncio.get_running_loop().time() - begun_s >= 0.25


async def test_too_many_requests_lose_nothing(endpoint: Endpoint, log: Path) -> None:
    endpoint.status, endpoint.headers = 429, {"retry-after": "0"}
    async with endpoint.client(deadline_s=0.2) as client, running(client.checkpoint) as agent:
        agent.follow(log)
        lines = write(log, 1, 50)
        await until(lambda: agent.jobs.counters.failures > 3)
        lines += write(log, 51, 100)
        endpoint.status, endpoint.headers = 200, {}
        await until(arrived(endpoint, 100))
    assert endpoint.lines(JOB, SOURCE) == lines


async def test_an_answer_that_is_lost_makes_lines_come_again_and_count_once(endpoint: Endpoint, log: Path) -> None:
    endpoint.lose_answers = True
    async with endpoint.client(deadline_s=0.2) as client, running(client.checkpoint) as agent:
        agent.follow(log)
        lines = write(log, 1, 50)
        await until(lambda: endpoint.repeated > 50)
        endpoint.lose_answers = False
        lines += write(log, 51, 60)
        await until(arrived(endpoint, 60))
    assert endpoint.lines(JOB, SOURCE) == lines
    assert endpoint.conflicting == 0


@pytest.mark.parametrize("fallbacks", [3, 5, 12])
async def test_lines_that_only_a_fallback_answered_come_again(endpoint: Endpoint, log: Path, fallbacks: int) -> None:
    lines = write(log, 1, 50)
    async with endpoint.client() as client, running(client.checkpoint) as agent:
        agent.follow(log)
        endpoint.fallbacks = fallbacks
        await until(lambda: not endpoint.fallbacks)
        await until(lambda: agent.jobs.budget.used == 0)
        lines += write(log, 51, 60)
        await until(lambda: 60 in endpoint.numbers(JOB, SOURCE))
        assert agent.jobs.counters.skipped == 0
    assert endpoint.lines(JOB, SOURCE) == lines


async def test_lines_have_a_time_only_where_it_is_known_when_they_came(endpoint: Endpoint, log: Path) -> None:
    write(log, 1, 50)
    async with endpoint.client() as client, running(client.checkpoint) as agent:
        agent.follow(log)
        await until(arrived(endpoint, 50))
        write(log, 51, 52)
        await until(arrived(endpoint, 52))
    times = endpoint.at[JOB, SOURCE]
    assert {times[number] for number in range(1, 51)} == {None}
    assert all(abs(times[number] - time.time()) < 60 for number in (51, 52))


async def test_a_line_that_is_refused_takes_few_others_along(endpoint: Endpoint, log: Path) -> None:
    endpoint.refuse = lambda text: text.startswith("step 500 ")
    lines = write(log, 1, 1000)
    async with endpoint.client() as client, running(client.checkpoint) as agent:
        agent.follow(log)
        await until(lambda: 1000 in endpoint.numbers(JOB, SOURCE))
        skipped = agent.jobs.counters.skipped
    assert 1 <= skipped <= 70
    assert endpoint.lines(JOB, SOURCE) == [line for n, line in enumerate(lines, 1) if n in endpoint.taken[JOB, SOURCE]]
    assert len(endpoint.lines(JOB, SOURCE)) == 1000 - skipped


@pytest.mark.parametrize("forgets", [False, True])
async def test_killed_and_started_again_it_goes_on_where_it_was(
    endpoint: Endpoint, log: Path, tmp_path: Path, forgets: bool
) -> None:
    state = tmp_path / "state.json"
    lines: list[str] = []
    for n in range(6):
        async with endpoint.client() as client, running(client.checkpoint, state) as agent:
            agent.follow(log)
            lines += write(log, 100 * n + 1, 100 * n + 100)
            await until(arrived(endpoint, 100 * n + 37))
            if n % 2:
                agent.jobs.offsets.save()
        if forgets:
            state.unlink(missing_ok=True)
        if n == 2:
            log.rename(log.with_name("train.log.1"))
    async with endpoint.client() as client, running(client.checkpoint, state) as agent:
        agent.follow(log)
        await until(arrived(endpoint, 600))
    assert endpoint.lines(JOB, SOURCE) == lines
    assert endpoint.conflicting == 0
    assert endpoint.numbers(JOB, SOURCE) == list(range(1, 601))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: b"",
        lambda text: os.urandom(500),
        lambda text: text.replace(b'"offset":', b'"offset":1'),
        lambda text: b'{"schema":"kopt-logtail/1","crc32":0}\n[]',
    ],
)
async def test_a_damaged_file_of_places_costs_nothing_but_reading_again(
    endpoint: Endpoint, log: Path, tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state.json"
    lines = write(log, 1, 300)
    async with endpoint.client() as client, running(client.checkpoint, state) as agent:
        agent.follow(log)
        await until(arrived(endpoint, 300))
        await until(lambda: agent.jobs.budget.used == 0)
        agent.jobs.offsets.save()
    state.write_bytes(damage(state.read_bytes()))
    lines += write(log, 301, 400)
    async with endpoint.client() as client, running(client.checkpoint, state) as agent:
        agent.follow(log)
        await until(arrived(endpoint, 400))
    assert endpoint.lines(JOB, SOURCE) == lines
    assert endpoint.numbers(JOB, SOURCE) == list(range(1, 401))
    assert "is damaged" in caplog.text


async def test_without_its_file_and_with_lines_gone_it_counts_on_where_the_endpoint_is(
    endpoint: Endpoint, log: Path
) -> None:
    endpoint.take({"job": JOB, "source": SOURCE, "first": 1, "lines": [f"gone {n}" for n in range(500)]})
    write(log, 1, 20)
    async with endpoint.client() as client, running(client.checkpoint) as agent:
        source = agent.follow(log)
        await until(lambda: not source.fresh and bool(endpoint.requests))
        write(log, 21, 30)
        await until(arrived(endpoint, 510))
    assert endpoint.lines(JOB, SOURCE)[500:] == [f"step {n} loss 0.{n}" for n in range(21, 31)]


async def test_places_that_cannot_be_kept_are_told_once(endpoint: Endpoint, tmp_path: Path, caplog: Any) -> None:
    offsets = OffsetStore(tmp_path / "absent" / "state.json")
    for n in range(3):
        offsets.set("a", {"number": n})
        offsets.save()
    assert caplog.text.count("cannot be kept") == 1
    (tmp_path / "absent").mkdir()
    offsets.save()
    head, body = (tmp_path / "absent" / "state.json").read_bytes().split(b"\n")
    assert json.loads(head)["schema"] == "kopt-logtail/1"
    assert json.loads(body)["a"]["number"] == 2
    assert [one.name for one in (tmp_path / "absent").iterdir()] == ["state.json"]


async def test_a_pattern_finds_files_that_come_later_and_leaves_rotated_ones_alone(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    async with endpoint.client() as client, running(client.checkpoint) as agent:
        files = Files(agent.jobs, agent.notices, [f"{tmp_path}/logs/rank*.log"], JOB, "pod")
        looking = asyncio.create_task(files.run())
        await asyncio.sleep(0)
        (tmp_path / "logs").mkdir()
        for n in range(3):
            write(tmp_path / "logs" / f"rank{n}.log", 1, 10 + n)
        await until(lambda: all(arrived(endpoint, 10 + n, JOB, f"pod/rank{n}")() for n in range(3)))
        (tmp_path / "logs" / "rank0.log").rename(tmp_path / "logs" / "rank0.log.1")
        write(tmp_path / "logs" / "rank0.log", 11, 20)
        await until(arrived(endpoint, 20, JOB, "pod/rank0"))
        with (tmp_path / "logs" / "rank1.log").open("a") as file:
            file.write("not ended")
        files.finish()
        await agent.jobs.drained()
        looking.cancel()
    assert endpoint.lines(JOB, "pod/rank1")[-1] == "not ended"
    assert {source for _, source in endpoint.taken} == {"pod/rank0", "pod/rank1", "pod/rank2"}


async def test_a_job_that_prints_without_end_is_thinned_out_and_the_others_are_not(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    pace = PaceSettings(lines_per_second=500, burst=1000, patience_s=0.3, catch_up_s=1.0, telling_per_second=1000)
    loud, quiet = tmp_path / "loud.log", tmp_path / "quiet.log"
    async with endpoint.client() as client, running(client.checkpoint, settings=replace(QUICK, pace=pace)) as agent:
        agent.follow(loud, "research/loud", "a")
        agent.follow(quiet, "research/quiet", "a")
        count = 0
        for n in range(400):
            count += 500
            with loud.open("a") as file:
                file.write("".join(f"noise {i}\n" for i in range(count - 499, count)) + f"Saving checkpoint {n}\n")
            write(quiet, n + 1, n + 1)
            await asyncio.sleep(0.01)
        await until(arrived(endpoint, 400, "research/quiet", "a"))
        await until(lambda: agent.jobs.counters.skipped > 0)
        with loud.open("a") as file:
            file.write("the end\n")
        await until(lambda: count + 1 in endpoint.numbers("research/loud", "a"))
        skipped = agent.jobs.counters.skipped
    sent = endpoint.taken["research/loud", "a"]
    assert sent[count + 1] == "the end"
    assert skipped + len(sent) == count + 1, "what was passed over is counted"
    assert all(text == f"noise {number}" for number, text in sent.items() if text.startswith("noise"))
    saved = [text for text in sent.values() if text.startswith("Saving")]
    assert len(saved) > 200, "what tells of checkpoints is sent all the same"
    assert endpoint.lines("research/quiet", "a") == [f"step {n} loss 0.{n}" for n in range(1, 401)]
