"""``--context`` chooses a cluster of the kubeconfig, on every command that reads one."""

from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from kopt.cli.main import app
from kopt.core.settings import KUBE_CONTEXT
from tests.cli.conftest import Kopt

CONFIG = """
apiVersion: v1
kind: Config
current-context: here
users: [{name: u, user: {token: t}}]
clusters:
- {name: a, cluster: {server: "http://127.0.0.1:1"}}
- {name: b, cluster: {server: "http://127.0.0.1:2"}}
contexts:
- {name: here, context: {cluster: a, user: u}}
- {name: there, context: {cluster: b, user: u}}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(KUBE_CONTEXT, "")  # what a command sets is taken back after the test
    (tmp_path / "config").write_text(CONFIG)
    return str(tmp_path / "config")


def _commands(command: Any, ctx: Any, name: str = "") -> Any:
    inner = command.list_commands(ctx) if hasattr(command, "list_commands") else []
    if not inner:
        yield name, command
    for word in inner:
        yield from _commands(command.get_command(ctx, word), ctx, f"{name} {word}".strip())


def test_every_command_that_reads_a_kubeconfig_takes_a_context() -> None:
    group = get_command(app)
    found = {}
    for name, command in _commands(group, None):
        options = {option for param in command.params for option in param.opts}
        if "--kubeconfig" in options:
            found[name] = "--context" in options
    assert {"why", "queue", "agent logtail node"} <= set(found)
    assert all(found.values()), found


@pytest.mark.parametrize(("words", "port"), [((), 1), (("--context", "there"), 2), (("--context", "here"), 1)])
def test_a_context_names_the_cluster(kopt: Kopt, config: str, words: tuple[str, ...], port: int) -> None:
    done = kopt("queue", "--kubeconfig", config, *words)
    assert done.status == 1
    assert f"Cannot connect to 127.0.0.1:{port} (Connection refused)" in done.err


def test_a_context_that_is_not_there_is_said(kopt: Kopt, config: str) -> None:
    done = kopt("queue", "--kubeconfig", config, "--context", "nowhere")
    assert done.status == 1
    assert "nowhere" in done.err
