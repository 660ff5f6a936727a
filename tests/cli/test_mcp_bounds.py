"""Answers for assistants stay short, whatever the cluster holds, come in time, and nothing is written on the way."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from kopt.cli.mcp.bounds import MOST_CHARS, MOST_ROWS, MOST_TOTAL, enveloped
from kopt.cli.mcp.tools import Document, Tools
from kopt.cluster.client.api import Forbidden, Kube, KubeSettings
from kopt.cluster.client.resources import PODS
from kopt.core.settings import Settings

pytest.importorskip("mcp")
import mcp.types
from mcp import Client

from kopt.cli.mcp import commands, server

HIDDEN = "a\u202eb\u200bc\x1b[31m"
SECRET = "hf_" + "aB3xK9qLm2" * 3 + "Zr7t"


@pytest.mark.parametrize(
    "document",
    [
        {"rows": [{"name": "x"}] * 5000},
        {"rows": [[{"name": "x" * 10**6}] * 300] * 300},
        {"rows": [['"\n' * 10**6] * 300] * 300},
        {"rows": [[1.5] * 300] * 300},
        {f"key-{number}": number for number in range(10**5)},
        {"k" * 10**6: [float("nan")] * 10},
    ],
)
def test_an_answer_is_bounded_and_says_how_much_is_missing(document: dict[str, Any]) -> None:
    answer = enveloped(document, 10**9)
    assert len(json.dumps(answer, indent=2, ensure_ascii=False)) < MOST_TOTAL + 4 * MOST_CHARS
    rows = document.get("rows") or list(document)
    assert answer["left_out"] >= len(rows) - MOST_ROWS
    assert answer["data"]
    assert answer["note"].startswith("Untrusted data")


def test_texts_show_no_hidden_characters_and_no_secrets() -> None:
    text = enveloped({"message": f"{HIDDEN} password=hunter2hunter2"}, 5)["data"]["message"]
    assert not set("\u202e\u200b\x1b") & set(text)
    assert "hunter2hunter2" not in text


@pytest.mark.parametrize("before", range(MOST_CHARS - len(SECRET), MOST_CHARS, 6))
def test_a_secret_that_the_cut_goes_through_is_none_of_the_text(before: int) -> None:
    text = enveloped({"message": " " * before + f" {SECRET} " + "b" * MOST_CHARS}, 5)["data"]["message"]
    assert "hf_aB" not in text


@dataclass(frozen=True)
class Answering(Tools):
    """``queue`` gives this, in place of what a cluster has."""

    give: Callable[[], Any] = dict

    async def queue(self, namespace: str, queue: str, *, only_pending: bool) -> Document:
        given = self.give()
        document: Document = await given if asyncio.iscoroutine(given) else given
        return document


@asynccontextmanager
async def assistant(give: Callable[[], Any], prometheus: str = "") -> AsyncIterator[Client]:
    nobody: Any = None
    tools = Answering(nobody, Settings(home=Path("none")), prometheus, give=give)
    async with Client(server.make_server(tools, "1")) as client:
        yield client


def text_of(result: mcp.types.CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, mcp.types.TextContent)
    text: str = content.text
    return text


async def test_what_goes_to_the_assistant_is_bounded_as_a_whole() -> None:
    async with assistant(lambda: {"workloads": [{"name": '"' * 10**4, "gpus": [1.0] * 300}] * 300}) as client:
        text = text_of(await client.call_tool("queue", {"limit": MOST_ROWS}))
        assert MOST_TOTAL / 2 < len(text) < MOST_TOTAL + 4 * MOST_CHARS
        assert json.loads(text)["left_out"] > 0
        two = json.loads(text_of(await client.call_tool("queue", {"limit": 2})))
        assert (len(two["data"]["workloads"]), two["left_out"]) == (2, 298 + 2 * 298)


@pytest.mark.parametrize(
    "arguments", [{"limit": MOST_ROWS + 1}, {"limit": 0}, {"namespace": "n" * 64}, {"queue": "q" * 254}]
)
async def test_more_than_a_tool_takes_is_refused_before_anything_is_read(arguments: dict[str, Any]) -> None:
    read: list[int] = []

    def rows() -> Document:
        read.append(1)
        return {"rows": []}

    async with assistant(rows) as client:
        refused = await client.call_tool("queue", arguments)
        assert refused.is_error
        assert not read
        assert not (await client.call_tool("queue", {"limit": MOST_ROWS})).is_error
    assert read


@pytest.mark.parametrize("since", ["599s", "x", ""])
async def test_a_window_without_measurements_is_refused_before_prometheus_is_asked(since: str) -> None:
    async with assistant(dict, prometheus="http://127.0.0.1:1") as client:
        for tool in ("recommend", "idle"):
            refused = await client.call_tool(tool, {"since": since})
            assert refused.is_error
            assert f" {tool}: since: " in text_of(refused)


async def test_a_cluster_that_does_not_answer_costs_an_assistant_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MOST_S", 0.05)
    async with assistant(lambda: asyncio.sleep(3600)) as client, asyncio.timeout(30):
        late = await client.call_tool("queue", {})
        assert late.is_error
        assert "no answer within 0.05 s" in text_of(late)


async def test_an_error_is_as_short_and_clean_as_an_answer() -> None:
    def fail() -> None:
        raise RuntimeError(f"{HIDDEN} token={SECRET} " + "x" * 10**6)

    async with assistant(fail) as client:
        failed = await client.call_tool("queue", {})
    text = text_of(failed)
    assert failed.is_error
    assert len(text) < 2 * MOST_CHARS
    assert not set("\u202e\u200b\x1b") & set(text)
    assert SECRET not in text
    assert "Traceback" not in text


async def test_every_tool_says_that_it_only_reads_and_bounds_its_arguments() -> None:
    async with assistant(dict, prometheus="http://127.0.0.1:1") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert tools.keys() == {"why", "queue", "gpus", "recommend", "idle"}
    for name, tool in tools.items():
        assert tool.annotations is not None
        assert (tool.annotations.read_only_hint, tool.annotations.destructive_hint) == (True, False), name
        for argument, schema in tool.input_schema["properties"].items():
            if schema["type"] == "string":
                assert schema["maxLength"] <= 512, (name, argument)
            else:
                assert schema["type"] == "boolean" or "maximum" in schema, (name, argument)


async def test_a_reading_client_sends_nothing_that_writes() -> None:
    class Nobody:
        async def credentials(self) -> None:
            raise AssertionError("something was to be sent")

    access: Any = Nobody()
    kube = Kube(access, KubeSettings(read_only=True))
    body: dict[str, Any] = {"metadata": {"name": "x", "namespace": "y"}}
    for writing in (
        kube.create(PODS, body, "y", dry_run=True),
        kube.create_at(PODS, "y", "x", "eviction", body),
        kube.replace(PODS, body),
        kube.patch(PODS, "x", {}, "y"),
        kube.delete(PODS, "x", "y"),
    ):
        with pytest.raises(Forbidden, match="only reads"):
            await writing
    await kube.close()


async def test_the_command_gives_its_tools_such_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig = tmp_path / "config"
    nowhere = {"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    names = {"clusters": [nowhere], "contexts": [context], "users": [{"name": "x", "user": {}}]}
    kubeconfig.write_text(yaml.safe_dump({"current-context": "x", **names}))
    settings: list[KubeSettings] = []

    class Served:
        async def run_stdio_async(self) -> None: ...

    def serve(tools: Tools, version: str) -> Served:
        settings.append(tools.kube.settings)
        return Served()

    monkeypatch.setattr(server, "make_server", serve)
    await commands._serve(kubeconfig, "", None)
    assert [one.read_only for one in settings] == [True]
