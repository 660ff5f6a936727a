"""What attacks start from: a real platform of somebody, and a stranger on the same machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

PATIENCE_S = 90.0
_STRANGER = """
import encodings.idna, http.client, json, os, socket, sys, urllib.parse
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
for line in sys.stdin:
    try:
        wanted = json.loads(line)
        link = http.client.HTTPConnection(wanted["host"], wanted["port"], timeout=20)
        link.request(wanted["method"], wanted["path"], wanted["body"], wanted["headers"])
        reply = link.getresponse()
        answer = {"status": reply.status, "body": reply.read().decode("latin-1"), "headers": dict(reply.getheaders())}
    except (OSError, http.client.HTTPException) as error:
        answer = {"status": 0, "body": repr(error), "headers": {}}
    print(json.dumps(answer), flush=True)
"""


@dataclass(frozen=True)
class Reply:
    """An answer over HTTP; status 0 where there was no connection."""

    status: int
    body: str
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Stranger:
    """Another user of the machine (``nobody`` where this one is root) who sends what he likes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _STRANGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def request(
        self, method: str, host: str, port: int, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """``body`` is sent as JSON unless it is text."""
        text = body if isinstance(body, str) or body is None else json.dumps(body)
        kind = {} if body is None or isinstance(body, str) else {"Content-Type": "application/json"}
        wanted = {
            "method": method,
            "host": host,
            "port": port,
            "path": path,
            "body": text,
            "headers": kind | (headers or {}),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        return Reply(**json.loads(self._process.stdout.readline()))

    def leave(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    visitor = Stranger()
    yield visitor
    visitor.leave()


@dataclass(frozen=True)
class Listener:
    """A TCP port that a process accepts connections on."""

    process: str
    pid: int
    address: str
    port: int


def family(pid: int) -> list[psutil.Process]:
    """A process with all that it started."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def listeners(pid: int) -> list[Listener]:
    """All ports that a process and its descendants listen on."""
    listening = []
    for process in family(pid):
        try:
            for socket in process.net_connections("tcp"):
                if socket.status == psutil.CONN_LISTEN:
                    listening.append(Listener(process.name(), process.pid, socket.laddr.ip, socket.laddr.port))
        except psutil.Error:
            continue
    return listening


def environ(home: Path) -> dict[str, str]:
    """Somebody's environment, who even says that Ray shall ask for nothing."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("KOPT_", "RAY_"))}
    ports = {f"KOPT_{name}_PORT": "0" for name in ("API", "PAGES", "MLFLOW")}
    return {**known, **ports, "KOPT_HOME": str(home), "RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": "192.0.2.1:6379"}
