"""Answers for assistants stay short, whatever the cluster holds."""

import json
from typing import Any

import pytest

from kopt.cli.mcp.bounds import MOST_ROWS, MOST_TOTAL, enveloped
from kopt.cluster.client.api import Forbidden, Kube, KubeSettings
from kopt.cluster.client.resources import PODS


@pytest.mark.parametrize(
    "document",
    [
        {"rows": [{"name": "x"}] * 5000},
        {"rows": [[{"name": "x" * 10**6}] * 300] * 300},
        {f"key-{number}": number for number in range(10**5)},
        {"k" * 10**6: [float("nan")] * 10},
    ],
)
def test_an_answer_is_bounded_and_says_how_much_is_missing(document: dict[str, Any]) -> None:
    answer = enveloped(document, 10**9)
    assert len(json.dumps(answer)) < 2 * MOST_TOTAL
    rows = document.get("rows") or list(document)
    assert answer["left_out"] >= len(rows) - MOST_ROWS
    assert answer["data"]


def test_texts_show_no_hidden_characters_and_no_secrets() -> None:
    hidden = "a\u202eb\u200bc\x1b[31m password=hunter2hunter2"
    text = enveloped({"message": hidden}, 5)["data"]["message"]
    assert not set("\u202e\u200b\x1b") & set(text)
    assert "hunter2hunter2" not in text


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
