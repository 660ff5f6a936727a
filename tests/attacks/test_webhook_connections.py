"""Any pod can reach the port of the webhooks. Whatever it sends, and however slowly, reviews of others are answered.

The attacker has an address of its own, as a pod has; where it is another's neighbour (NAT), it says so.
"""

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from admission.workloads import job, review
from controlplane.certificates import Authority, KeyPair
from controlplane.processes import PATIENCE_S, spawn, wait_for

from kopt.cluster.runtime.http.certificates import make_pair

CONNECTIONS = 128
ATTACKER = "127.0.0.66"
MIB = 1 << 20
PATHS = {"webhook": "/validate", "preemption": "/hold"}


@dataclass
class Served:
    """A review server in a process of its own."""

    path: str
    port: int
    probe_port: int
    process: psutil.Process
    authority: str
    """PEM; whom the API server trusts here."""

    def __post_init__(self) -> None:
        self.tls = ssl.create_default_context(cadata=self.authority)

    def raw(self, address: str = ATTACKER, port: int = 0) -> socket.socket:
        return socket.create_connection(
            ("127.0.0.1", port or self.port), timeout=PATIENCE_S, source_address=(address, 0)
        )

    def connect(self, address: str = ATTACKER) -> ssl.SSLSocket:
        return self.tls.wrap_socket(self.raw(address), server_hostname="127.0.0.1")

    def head(self, length: int, *more: str) -> bytes:
        lines = [f"POST {self.path} HTTP/1.1", "Host: kopt-webhook.kopt-system.svc:443", f"Content-Length: {length}"]
        return "\r\n".join([*lines, *more, "", ""]).encode()

    def review(self, padding: int = 0) -> int:
        """The status with which a review of the API server's is answered."""
        document = review(job("train"))
        document["request"]["object"]["metadata"]["annotations"] = {"padding": "x" * padding}
        body = json.dumps(document).encode()
        with self.connect("127.0.0.1") as api_server:
            api_server.sendall(self.head(len(body), "Connection: close") + body)
            answer = read_all(api_server)
        head, _, content = answer.partition(b"\r\n\r\n")
        assert json.loads(content)["response"]["uid"] == document["request"]["uid"]
        return int(head.split()[1])

    @property
    def resident_bytes(self) -> int:
        return int(self.process.memory_info().rss)


def read_all(stream: socket.socket) -> bytes:
    """What comes until the other side closes, in whatever way."""
    found = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while part := stream.recv(65536):
            found += part
    return found


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    pair = make_pair(["127.0.0.1"], time.time(), 3600)
    file = tmp_path_factory.mktemp("tls") / "chain.pem"
    file.write_bytes(pair.certificate + pair.key)
    return file, pair.authority.decode()


@pytest.fixture(scope="module", params=list(PATHS))
def served(request: pytest.FixtureRequest, chain: tuple[Path, str]) -> Iterator[Served]:
    with started(request.param, chain) as one:
        yield one


@pytest.fixture(params=list(PATHS))
def fresh(request: pytest.FixtureRequest, chain: tuple[Path, str]) -> Iterator[Served]:
    """One whose memory nobody has used before."""
    with started(request.param, chain) as one:
        yield one


@pytest.fixture
def webhook(chain: tuple[Path, str]) -> Iterator[Served]:
    with started("webhook", chain) as one:
        yield one


@contextlib.contextmanager
def started(kind: str, chain: tuple[Path, str], **settings: str) -> Iterator[Served]:
    command = [sys.executable, "-P", Path(__file__).with_name("review_server.py"), kind, chain[0], str(CONNECTIONS)]
    process = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | settings)
    try:
        assert process.stdout is not None
        port, probe_port = map(int, process.stdout.readline().split())
        yield Served(PATHS[kind], port, probe_port, psutil.Process(process.pid), chain[1])
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def many(connect: Callable[[], socket.socket], count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context(connect()) for _ in range(count)]


@pytest.mark.parametrize("address", [ATTACKER, "127.0.0.1"], ids=["other-address", "same-address"])
def test_idle_connections_keep_nobody_out(served: Served, address: str) -> None:
    with many(lambda: served.connect(address), CONNECTIONS + 10):
        for _ in range(3):
            assert served.review() == 200


def test_connections_that_never_begin_tls_keep_nobody_out_and_take_no_descriptors(served: Served) -> None:
    with many(served.raw, 4 * CONNECTIONS):
        assert served.review() == 200
        wait_for(lambda: served.process.num_fds() < CONNECTIONS + 64)
        assert served.review() == 200


def test_the_connections_of_others_stay_where_a_newcomer_takes_them_all(served: Served) -> None:
    with served.connect("127.0.0.1") as api_server, many(served.connect, 2 * CONNECTIONS):
        body = json.dumps(review(job("train"))).encode()
        api_server.sendall(served.head(len(body), "Connection: close") + body)
        assert read_all(api_server).startswith(b"HTTP/1.1 200 ")


def test_unfinished_bodies_take_a_bounded_memory_and_reviews_are_answered(fresh: Served) -> None:
    assert fresh.review() == 200
    before = fresh.resident_bytes
    body = b" " * (7 * MIB)
    with many(fresh.connect, 48) as connections:
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(fresh.head(len(body) + 1) + body)
        assert fresh.review() == 200
        assert fresh.review(padding=2 * MIB) == 200
        assert fresh.resident_bytes - before < 160 * MIB


@pytest.mark.parametrize("kind", list(PATHS))
def test_requests_that_are_sent_byte_by_byte_end_in_time(kind: str, chain: tuple[Path, str]) -> None:
    begun = (b"", b"Content-Length: 10000\r\n\r\n")
    with started(kind, chain, REQUEST_S="2") as served, many(served.connect, len(begun)) as connections:
        for slow, first in zip(connections, begun, strict=True):
            slow.sendall(f"POST {served.path} HTTP/1.1\r\nHost: a\r\n".encode() + first)
        wait_for(lambda: sum(drip(slow) for slow in connections) == 0)
        assert served.review() == 200


def drip(connection: socket.socket) -> bool:
    """Whether the connection still takes a byte."""
    try:
        connection.sendall(b"a")
        connection.settimeout(0.001)
        return bool(connection.recv(1))
    except (TimeoutError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    finally:
        connection.settimeout(PATIENCE_S)


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
FORMS = {
    "two-lengths": b"Content-Length: 4\r\nContent-Length: 40\r\n",
    "the-same-length-twice": b"Content-Length: 4\r\nContent-Length: 4\r\n",
    "list-of-lengths": b"Content-Length: 4, 40\r\n",
    "signed-length": b"Content-Length: +4\r\n",
    "hexadecimal-length": b"Content-Length: 0x4\r\n",
    "length-and-encoding": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    "encoding-and-length": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "chunked": b"Transfer-Encoding: chunked\r\n",
    "unknown-encoding": b"Transfer-Encoding: xchunked\r\n",
    "space-before-colon": b"Transfer-Encoding : chunked\r\nContent-Length: 4\r\n",
    "bare-lf": b"X: a\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "bare-cr": b"X: a\rTransfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "folded-line": b"X: a\r\n Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "folded-length": b"Content-Length:\r\n 4\r\n",
    "nul": b"X: a\0b\r\nContent-Length: 4\r\n",
    "nul-in-a-name": b"Transfer-Encoding\0: chunked\r\nContent-Length: 4\r\n",
    "two-hosts": b"Host: b\r\nContent-Length: 4\r\n",
    "upgrade": b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 4\r\n",
}


def test_what_two_parsers_read_in_two_ways_is_refused(served: Served) -> None:
    with many(served.connect, len(FORMS)) as connections:
        for connection, lines in zip(connections, FORMS.values(), strict=True):
            head = f"POST {served.path} HTTP/1.1\r\nHost: a\r\n".encode()
            connection.sendall(head + lines + b"\r\n0\r\n\r\n" + SMUGGLED)
        for form, connection in zip(FORMS, connections, strict=True):
            answer = read_all(connection)
            assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 411 ")), (form, answer[:200])
            assert b"Connection: close\r\n" in answer, form
            assert answer.count(b"\r\n\r\n") == 1, (form, answer)
    assert served.review() == 200


def test_lines_of_lf_alone_and_heads_without_end_are_refused(served: Served) -> None:
    sent = (b"GET /mutate HTTP/1.1\nHost: a\n\n" + SMUGGLED, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4000)
    with many(served.connect, 2) as connections:
        for connection, head in zip(connections, sent, strict=True):
            connection.sendall(head)
        assert [read_all(one)[:13] for one in connections] == [b"HTTP/1.1 400 ", b"HTTP/1.1 431 "]


def test_answers_that_nobody_reads_take_a_bounded_memory(webhook: Served) -> None:
    before = webhook.resident_bytes
    call = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
    with many(lambda: webhook.raw(port=webhook.probe_port), 4) as connections:
        for connection in connections:
            connection.setblocking(False)
        pending = {connection: memoryview(call * 20_000) for connection in connections}
        end_s = time.monotonic() + 5.0
        while time.monotonic() < end_s:
            for connection, calls in pending.items():
                with contextlib.suppress(OSError):
                    pending[connection] = calls[connection.send(calls[:65536]) :]
            time.sleep(0.01)
        assert webhook.review() == 200
        with webhook.raw("127.0.0.1", webhook.probe_port) as kubelet:
            kubelet.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert read_all(kubelet).startswith(b"HTTP/1.1 200 ")
        assert webhook.resident_bytes - before < 48 * MIB


def test_a_review_of_millions_of_values_is_not_read(webhook: Served) -> None:
    before = webhook.resident_bytes
    body = b'{"request":{"uid":"u","object":{"a":[' + b"[]," * (5 * MIB // 3) + b"0]}}}"
    with webhook.connect() as connection:
        connection.sendall(webhook.head(len(body), "Connection: close") + body)
        assert read_all(connection).startswith(b"HTTP/1.1 400 ")
    assert webhook.resident_bytes - before < 64 * MIB


def test_with_a_ca_of_callers_strangers_are_not_heard(tmp_path: Path, chain: tuple[Path, str]) -> None:
    own, other = Authority(tmp_path, "own"), Authority(tmp_path, "other")
    callers = {name: one.issue(f"{name}-caller", "kube-apiserver") for name, one in (("own", own), ("other", other))}
    bundle = tmp_path / "callers.crt"
    shutil.copy(own.certificate, bundle)
    with started("webhook", chain, CLIENT_CA=str(bundle)) as webhook:
        assert not hears(webhook, None)
        assert not hears(webhook, callers["other"])
        assert hears(webhook, callers["own"])
        shutil.copy(other.certificate, bundle)
        wait_for(lambda: hears(webhook, callers["other"]))
        assert not hears(webhook, callers["own"])


def hears(webhook: Served, caller: KeyPair | None) -> bool:
    """Whether a call with that certificate is answered."""
    context = ssl.create_default_context(cadata=webhook.authority)
    if caller is not None:
        context.load_cert_chain(caller.certificate, caller.key)
    with contextlib.suppress(OSError), context.wrap_socket(webhook.raw(), server_hostname="127.0.0.1") as connection:
        connection.sendall(webhook.head(0, "Connection: close"))
        return read_all(connection).startswith(b"HTTP/1.1 400 ")
    return False
