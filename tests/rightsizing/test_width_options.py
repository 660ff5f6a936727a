"""What `kopt rightsize` refuses of widths before it changes anything, and what it says that it left out."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from attacks.api_in_memory import MemoryKube
from attacks.scenarios.objects import node, pod
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.cli.rightsize import commands, widths
from kopt.cli.rightsize.view import plan_answer
from kopt.cluster.client.resources import JOBS, NODES, PODS
from kopt.cluster.workloads.resizing.elastic import ElasticJob
from kopt.core.workload.rightsizing import Batch
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.client.transport import RequestRefused


@pytest.mark.parametrize(
    "arguments",
    [
        ["apply", "job/train", "--width", "3"],
        ["apply", "job/train", "--batch", "fixed", "--prometheus", "http://p"],
        ["apply", "job/train", "--resource", "width", "--prometheus", "http://p"],
        ["apply", "job/train", "--resource", "width", "--container", "main"],
        ["plan", "--token-file", "token"],
    ],
)
def test_options_that_would_be_ignored_are_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["rightsize", *arguments])
    assert result.exit_code == 2, result.output


def test_a_plan_of_a_workload_that_does_not_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = MemoryKube()
    kube.put(NODES, node("n0"))
    kube.put(PODS, pod("train-0", on="n0"))

    async def with_kube(_: Any, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await work(kube)

    monkeypatch.setattr(commands, "with_kube", with_kube)
    result = CliRunner().invoke(app, ["rightsize", "plan", "job/typo"])
    assert result.exit_code == 1
    assert "no pod of a workload job/typo" in result.output


def test_a_plan_without_measurements_says_so() -> None:
    assert "not looked at" in plan_answer([], {}, everything=False, is_measured=False).remarks[-1]
    assert plan_answer([], {}, everything=False).remarks == []


async def test_an_endpoint_that_refuses_the_question_tells_no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sizing(*_: Any) -> Any:
        raise RequestRefused(422, "measured_steps: too large")

    monkeypatch.setattr(AsyncPredictionClient, "sizing", sizing)
    job = ElasticJob(JOBS, "team", "train", "u", 2, 1, 4, 1, Batch.FIXED)
    asked: Any = SimpleNamespace(question={})
    assert await widths._curve(asked, job, {2: 1.0}) == {}
