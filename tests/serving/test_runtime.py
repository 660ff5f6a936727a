"""``/v1/runtime`` through the application, with the shipped model: runs go in, answers come out; replicas agree,
restarts lose nothing, and what cannot be is refused."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from kopt.core.settings import Settings
from kopt.core.workload.run_time import JobKind, JobRun, RunTimeQuestion, StepProgress
from kopt.models.runtime.predictor import RunTimePredictor
from kopt.models.runtime.records import LEAST_COMPARED
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.client.transport import RequestRefused
from kopt.serving.contract.common import DEADLINE_HEADER
from kopt.serving.contract.runtime_answers import parse_queues, parse_run_time
from kopt.serving.contract.runtime_schemas import MAX_RUNS
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.measured.health import LEAST
from kopt.serving.runtime.service import RunTimeService
from tests.serving.conftest import URL, MemorySource, StandInModel, no_store

NOW_S = 1.79e9
KIND = JobKind("research", 8, "finetune", "ada")
Start = Callable[[], Endpoint]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts replicas with one state."""
    started = []

    def go() -> Endpoint:
        built = assemble(
            Settings(home=tmp_path),
            Parts(MemorySource(), StoredFeatures(no_store), refresh_s=3600, shipped={"demand": StandInModel}),
        )
        built.start()
        built.service(RunTimeService).refresh()
        started.append(built)
        return built

    yield go
    for built in started:
        built.stop()


def client(endpoint: Endpoint) -> AsyncPredictionClient:
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    return AsyncPredictionClient(URL, transport=transport, deadline_s=30.0)


@pytest.fixture
async def http(start: Start) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(start(), manage=False), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=URL, headers={DEADLINE_HEADER: "30000"}) as opened:
        yield opened


def ended(count: int, seconds: float = 3_600.0, *, first: int = 0, kind: JobKind = KIND) -> list[JobRun]:
    rng = np.random.default_rng(first)
    starts_s = [NOW_S - 2e6 + 6_000.0 * at for at in range(first, first + count)]
    return [
        JobRun(f"job-{first + at}", kind, started_s, started_s + seconds * float(rng.uniform(0.8, 1.25)))
        for at, started_s in enumerate(starts_s)
    ]


def question(**more: Any) -> dict[str, Any]:
    return {"queue": KIND.queue, "gpus": KIND.gpus, "name": KIND.name, "user": KIND.user, "at_s": NOW_S} | more


async def test_nothing_is_known_until_a_run_has_ended_and_then_it_is(start: Start) -> None:
    async with client(start()) as asked:
        answer = await asked.runtime(question())
        assert answer.refused
        assert answer.run_seconds is None
        assert [reason.code for reason in answer.reasons] == ["NO_RUNS"]
        assert (await asked.send_runs(ended(12))).kept == 12
        answer = await asked.runtime(question())
        assert (answer.level, answer.finished, answer.fallback) == ("name", 12, False)
        assert answer.run_seconds is not None
        assert 2_000 < answer.run_seconds.p50 < 7_000
        assert answer.run_seconds.p05 < answer.run_seconds.p50 < answer.run_seconds.p95
        running = await asked.runtime(question(started_s=NOW_S - 36_000))
        assert running.run_seconds is not None
        assert running.remaining_seconds is not None
        assert running.run_seconds.p05 >= 36_000
        assert running.remaining_seconds.p50 == pytest.approx(running.run_seconds.p50 - 36_000, abs=0.01)


async def test_what_is_sent_again_or_late_changes_nothing(start: Start) -> None:
    runs = ended(20)
    async with client(start()) as asked:
        await asked.send_runs(list(reversed(runs)))
        before = await asked.runtime(question())
        again = await asked.send_runs([*runs, JobRun(runs[3].job, KIND, runs[3].started_s, runs[3].started_s + 9e6)])
        assert (again.kept, again.known) == (0, 21)
        started_late = JobRun(runs[4].job, KIND, runs[4].started_s)
        assert (await asked.send_runs([started_late])).kept == 0, "a start after its end"
        assert await asked.runtime(question()) == before


async def test_replicas_agree_and_a_restart_loses_nothing(start: Start) -> None:
    one, other = start(), start()
    async with client(one) as first, client(other) as second:
        await first.send_runs(ended(10), "east")
        await second.send_runs([JobRun("now", KIND, NOW_S - 60.0)], "east")
        await second.send_runs(ended(10, first=10), "east")
        answers = [await asked.runtime(question(cluster="east")) for asked in (first, second)]
        assert answers[0].run_seconds == answers[1].run_seconds
        assert answers[0].finished == 20
        (queue,) = (await second.runtime_queues()).queues
        assert (queue.cluster, queue.queue, queue.running) == ("east", "research", 1)
        assert (await first.runtime(question(cluster="west"))).refused, "clusters share nothing"
    async with client(start()) as third:
        again = await third.runtime(question(cluster="east"))
        assert again.run_seconds is not None
        assert answers[0].run_seconds is not None
        assert again.run_seconds.p50 == pytest.approx(answers[0].run_seconds.p50)
        assert again.finished == 20


async def test_what_was_interrupted_does_not_count(start: Start) -> None:
    async with client(start()) as asked:
        await asked.send_runs(ended(10))
        before = await asked.runtime(question())
        await asked.send_runs([JobRun("evicted", KIND, NOW_S - 100, NOW_S - 90, interrupted=True)])
        after = await asked.runtime(question())
        assert (after.finished, before.finished) == (10, 10)


async def test_answers_are_compared_with_what_runs_took(start: Start) -> None:
    endpoint = start()
    service = endpoint.service(RunTimeService)
    async with client(endpoint) as asked:
        await asked.send_runs(ended(20))
        for run in ended(LEAST + 2, first=100):
            await asked.send_runs([JobRun(run.job, run.kind, run.started_s)])
            await asked.send_runs([run])
        service.refresh()
        (health,) = [item for item in (await asked.predictors_health()).predictors if item.predictor == "runtime"]
        assert (health.unit, health.compared) == ("s", LEAST + 2)
        assert health.coverage is not None
        assert health.coverage > 0.7


async def test_a_queue_that_changes_is_an_alarm_and_the_last_runs_answer(start: Start) -> None:
    """The model is broken on purpose: it takes every job to be a hundred times as long as it is."""
    endpoint = start()
    model = endpoint.service(RunTimeService).slot.current
    assert model is not None
    trees = model.trees

    class Far:
        def predict(self, features: Any) -> Any:
            return np.log(100.0) + 0.1 * trees.predict(features)

    model._trees = Far()  # type: ignore[assignment]
    async with client(endpoint) as asked:
        await asked.send_runs(ended(LEAST_COMPARED + 60))
        answer = await asked.runtime(question())
        assert answer.fallback
        assert answer.reasons[-1].code == "RUN_TIME_DRIFT"
        assert answer.run_seconds is not None
        assert 2_500 < answer.run_seconds.p50 < 5_000
        (queue,) = (await asked.runtime_queues()).queues
        assert queue.drifted
        assert queue.loss_ratio is not None
        assert queue.loss_ratio > 1.5
    text = endpoint.metrics.render().decode()
    assert "kopt_runtime_drifted_queues 1.0" in text
    assert 'kopt_runtime_fallbacks_total{reason="RUN_TIME_DRIFT"} 1.0' in text


async def test_a_model_that_fails_is_not_the_callers_problem(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(start()) as asked:
        await asked.send_runs(ended(10))

        def broken(*_: Any) -> Any:
            raise RuntimeError("broken on purpose")

        monkeypatch.setattr(RunTimePredictor, "answer", broken)
        answer = await asked.runtime(question())
        assert answer.fallback
        assert answer.reasons[-1].code == "MODEL_ERROR"
        assert answer.run_seconds is not None
        assert 2_000 < answer.run_seconds.p50 < 6_000
        monkeypatch.undo()
        assert not (await asked.runtime(question())).fallback


async def test_many_jobs_are_answered_as_each_by_itself(start: Start) -> None:
    other = JobKind("batch", 1)
    async with client(start()) as asked:
        await asked.send_runs([*ended(20), *ended(20, 60.0, first=100, kind=other)])
        await asked.send_runs([JobRun("now", KIND, NOW_S - 600.0)])
        questions = {
            "ml/now": RunTimeQuestion(KIND, NOW_S, NOW_S - 600.0, job="now"),
            "ml/next": RunTimeQuestion(KIND, NOW_S),
            "ml/short": RunTimeQuestion(other, NOW_S),
            "ml/unlike": RunTimeQuestion(JobKind("new", 64), NOW_S),
            "ml/unseen": RunTimeQuestion(KIND, NOW_S, NOW_S - 7_200.0),
            "ml/steps": RunTimeQuestion(KIND, NOW_S, NOW_S - 600.0, StepProgress(5, 50, NOW_S, (2.0, 2.5))),
        }
        answers = {job.id: job for job in (await asked.run_times(questions)).jobs}
        assert list(answers) == list(questions)
        single = await asked.runtime(question(job="now", started_s=NOW_S - 600.0))
        assert answers["ml/now"].remaining_seconds == single.remaining_seconds
        assert answers["ml/next"].remaining_seconds == (await asked.runtime(question())).remaining_seconds
        unseen = await asked.runtime(question(started_s=NOW_S - 7_200.0))
        assert answers["ml/unseen"].remaining_seconds == unseen.remaining_seconds
        steps = {"step": 5, "steps": 50, "at_s": NOW_S, "step_seconds": [2.0, 2.5]}
        logged = await asked.runtime(question(started_s=NOW_S - 600.0, progress=steps))
        for name, one in {"ml/now": single, "ml/unseen": unseen, "ml/steps": logged}.items():
            assert answers[name].remaining_seconds == one.remaining_seconds
            assert (answers[name].level, answers[name].finished) == (one.level, one.finished)
        short, long = answers["ml/short"].remaining_seconds, answers["ml/next"].remaining_seconds
        assert short is not None
        assert long is not None
        assert short.p50 < long.p50 / 5
        assert answers["ml/unlike"].level == "all"
        elsewhere = {job.id: job for job in (await asked.run_times(questions, "elsewhere")).jobs}
        assert [name for name, job in elsewhere.items() if job.remaining_seconds is not None] == ["ml/steps"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("", {"queue": "a"}),
        ("", {"queue": "a", "gpus": -1}),
        ("", {"queue": "a", "gpus": 1, "at_s": 1e300}),
        ("", {"queue": "a" * 300, "gpus": 1}),
        ("", {"queue": "a", "gpus": 1, "at_s": 5.0, "started_s": 6.0}),
        ("", {"queue": "a", "gpus": 1, "progress": {"step": 5, "steps": 4, "at_s": 0.0, "step_seconds": [1.0]}}),
        ("", {"queue": "a", "gpus": 1, "progress": {"step": 1, "steps": 4, "at_s": 0.0, "step_seconds": []}}),
        ("", {"queue": "a", "gpus": 1, "other": 1}),
        ("/jobs", {"jobs": []}),
        ("/jobs", {"at_s": 5.0, "jobs": [{"id": "a", "queue": "q", "gpus": 1, "started_s": 6.0}]}),
        ("/runs", {"runs": []}),
        ("/runs", {"runs": [{"job": "", "queue": "a", "gpus": 1, "started_s": 0.0}]}),
        ("/runs", {"runs": [{"job": "a", "queue": "a", "gpus": 1, "started_s": 5.0, "ended_s": 4.0}]}),
        ("/runs", {"runs": [{"job": "a", "queue": "a", "gpus": 1, "started_s": 0.0}] * (MAX_RUNS + 1)}),
    ],
)
async def test_what_cannot_be_is_refused_with_the_field(http: httpx.AsyncClient, path: str, body: Any) -> None:
    reply = await http.post(f"/v1/runtime{path}", json=body)
    assert reply.status_code == 422, reply.text
    assert reply.json()["errors"]
    assert parse_queues((await http.get("/v1/runtime/queues")).json()).queues == (), "nothing of it was kept"


async def test_a_batch_with_one_wrong_run_is_refused_whole(http: httpx.AsyncClient) -> None:
    good = {"job": "a", "queue": "q", "gpus": 1, "started_s": 0.0, "ended_s": 5.0}
    reply = await http.post("/v1/runtime/runs", json={"runs": [good, {**good, "job": "b", "ended_s": -1.0}]})
    assert reply.status_code == 422
    assert "runs.1" in reply.text
    assert parse_run_time((await http.post("/v1/runtime", json={"queue": "q", "gpus": 1})).json()).refused


async def test_the_client_says_what_was_refused(start: Start) -> None:
    async with client(start()) as asked:
        with pytest.raises(RequestRefused, match="gpus"):
            await asked.runtime({"queue": "a", "gpus": -1})
