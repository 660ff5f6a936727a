"""Where the client's token comes from, and that it is shown to the endpoint and to nobody else."""

import logging
from pathlib import Path

import httpx
import pytest

from kopt.dashboard.app import pages_client
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.client.tokens import TokenError, token_from
from kopt.serving.client.transport import EndpointFailure
from kopt.serving.contract.demand_answers import DemandQuery, History

SECRET = "header.payload.signature"


class Door:
    """An endpoint that lets one token in and keeps what it was shown."""

    def __init__(self, wanted: str) -> None:
        self.wanted, self.shown = wanted, list[str]()
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.shown.append(request.headers.get("authorization", ""))
        if self.shown[-1] != f"Bearer {self.wanted}":
            problem = {"detail": "The token is not valid, or no longer; get a new one."}
            return httpx.Response(401, json=problem, headers={"content-type": "application/problem+json"})
        return httpx.Response(200, json={"status": "ready"})


@pytest.fixture
def door() -> Door:
    return Door(SECRET)


async def is_let_in(door: Door) -> bool:
    async with AsyncPredictionClient("http://endpoint", transport=door.transport) as client:
        return await client.ready()


async def test_the_environments_token_is_shown(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not await is_let_in(door)
    monkeypatch.setenv("KOPT_TOKEN", f" {SECRET}\n")
    assert await is_let_in(door)
    assert door.shown == ["", f"Bearer {SECRET}"]


async def test_the_pages_show_it_as_well(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPT_TOKEN", SECRET)
    async with pages_client("http://endpoint", transport=door.transport) as client:
        assert await client.ready()


async def test_a_rotated_file_is_read_again(door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    monkeypatch.setenv("KOPT_TOKEN_FILE", str(path))
    async with AsyncPredictionClient("http://endpoint", transport=door.transport) as client:
        assert not await client.ready()
        path.write_text(SECRET)
        assert await client.ready()


def test_the_mounted_token_is_used_where_nothing_is_named(tmp_path: Path) -> None:
    mounted = tmp_path / "token"
    assert token_from({}, mounted=mounted) is None
    mounted.write_text(SECRET)
    found = token_from({}, mounted=mounted)
    assert found is not None
    assert found() == SECRET
    named = token_from({"KOPT_TOKEN": "other"}, mounted=mounted)
    assert named is not None
    assert named() == "other"


@pytest.mark.parametrize("content", ["", "\n", "two words", "a\r\nx-other: header", "ä", "x" * 20_000])
def test_what_is_no_token_is_refused_without_being_repeated(content: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    read = token_from({"KOPT_TOKEN_FILE": str(path)})
    assert read is not None
    with pytest.raises(TokenError, match="holds no bearer token") as refused:
        read()
    assert len(content) < 5 or content not in str(refused.value)


async def test_a_file_that_is_gone_costs_the_answer_and_not_the_forecast(
    door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "token"
    path.write_text(SECRET)
    monkeypatch.setenv("KOPT_TOKEN_FILE", str(path))
    caplog.set_level(logging.DEBUG)
    async with AsyncPredictionClient("http://endpoint", transport=door.transport) as client:
        assert await client.ready()
        path.unlink()
        with pytest.raises(EndpointFailure, match="No such file") as failure:
            await client.models()
        assert failure.value.reason.code == "NO_TOKEN"
        times = [60.0 * step for step in range(120)]
        answer = await client.demand(DemandQuery([History("chat", t=times, value=[1.0] * 120)]))
        assert answer.series[0].horizons[0].demand.fallback
    assert SECRET not in caplog.text
