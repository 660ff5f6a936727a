"""Demand from a real Prometheus server, and from servers that fail in every way a server can."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from controlplane.certificates import Authority

from kopt.data.demand import prometheus
from kopt.data.demand.prometheus import PrometheusError, Server, read_demand
from kopt.data.demand.table import DemandDataError, DemandSeries

QUERY = "sum by (service) (increase(requests_total[$step]))"
START_S = 1_736_121_600.0
GAP = slice(40, 46)


def _series(name: str, values: np.ndarray[Any, Any], start_s: float = START_S) -> DemandSeries:
    return DemandSeries(name, start_s, 300, values.astype(np.float64), start_known=True)


@pytest.fixture(scope="module")
def history() -> list[DemandSeries]:
    rng = np.random.default_rng(5)
    chat, search = rng.integers(0, 500, 200).astype(float), rng.integers(1, 9, 200).astype(float)
    search[GAP] = np.nan
    late = rng.integers(0, 50, 80).astype(float)
    return [_series("chat", chat), _series("search", search), _series("late", late, START_S + 100 * 300)]


@pytest.mark.services
class TestRealServer:
    def test_history_comes_back_bucket_by_bucket_with_its_gaps(
        self, prometheus_server: Any, history: list[DemandSeries], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Small chunks, so that their seams are crossed.
        monkeypatch.setattr(prometheus, "CHUNK_POINTS", 37)
        seen: list[tuple[int, int]] = []
        url = prometheus_server(history).url
        end_s = START_S + 200 * 300
        found = read_demand(url, QUERY, 200 * 300, until_s=end_s, progress=lambda *at: seen.append(at))
        by_name = {one.name: one for one in found}
        assert sorted(by_name) == ["chat", "late", "search"]
        for expected in history[:2]:
            got = by_name[expected.name]
            assert (got.start_s, got.step_s, got.start_known, got.unit) == (START_S, 300, True, "requests")
            np.testing.assert_allclose(got.value, expected.value, rtol=1e-9)
        assert np.isnan(by_name["search"].value[GAP]).all()
        assert seen == [(i, 6) for i in range(1, 7)]

    def test_a_silent_service_ends_in_gaps_and_a_new_one_begins_late(
        self, prometheus_server: Any, history: list[DemandSeries]
    ) -> None:
        found = read_demand(prometheus_server(history[2:]).url, QUERY, 200 * 300, until_s=START_S + 200 * 300)
        late = found[0]
        assert late.start_s == START_S + 100 * 300
        assert len(late) == 100
        np.testing.assert_allclose(late.value[:80], history[2].value, rtol=1e-9)
        assert np.isnan(late.value[81:]).all()

    def test_more_points_than_one_query_may_have(self, prometheus_server: Any) -> None:
        values = np.arange(12_500) % 7 * 10.0
        url = prometheus_server([DemandSeries("chat", START_S, 60, values, start_known=True)]).url
        found = read_demand(url, QUERY, 12_500 * 60, 60, until_s=START_S + 12_500 * 60)
        np.testing.assert_allclose(found[0].value, values, rtol=1e-9)

    @pytest.mark.parametrize(
        ("query", "message"),
        [
            ("sum by (service) (increase(nothing_total[5m]))", "no data"),
            ("sum by (service (", "400.*parse error"),
            ("sum by (pod) (increase(requests_total[5m]))", "no label 'service'"),
            (
                'label_replace(label_replace(increase(requests_total[5m]), "other", "$1", "service", "(.*)"), '
                '"service", "same", "", "")',
                "series 'same'.*sum by",
            ),
            ("sum by (service) (rate(requests_total[5m]))", "rate per second"),
            ("sum by (service) (-increase(requests_total[5m])) - 1", "series '.*', row 0: value is -"),
            ("sum by (service) (increase(requests_total[5m])) / 0", "value is inf"),
        ],
    )
    def test_queries_that_give_no_demand_say_why(
        self, prometheus_server: Any, history: list[DemandSeries], query: str, message: str
    ) -> None:
        url = prometheus_server(history[:2]).url
        with pytest.raises(DemandDataError, match=f"(?s){message}"):
            read_demand(url, query, 100 * 300, until_s=START_S + 100 * 300)

    def test_too_many_series(self, prometheus_server: Any, history: list[DemandSeries]) -> None:
        with pytest.raises(DemandDataError, match="more than 1 series"):
            read_demand(prometheus_server(history).url, QUERY, 9000, until_s=START_S + 36000, max_series=1)

    def test_a_server_killed_midway_is_an_error_not_half_a_history(
        self, prometheus_server: Any, history: list[DemandSeries], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(prometheus, "CHUNK_POINTS", 20)
        server = prometheus_server(history)

        def kill_after_three(done: int, _: int) -> None:
            if done == 3:
                server.stop()

        with pytest.raises(PrometheusError, match="cannot be reached"):
            read_demand(server.url, QUERY, 60_000, until_s=START_S + 60_000, retries=1, progress=kill_after_three)


Answer = Callable[[str, Callable[[bytes], None]], None]


@contextmanager
def _tcp_server(answer: Answer) -> Iterator[str]:
    """A server of our own that calls ``answer(path, send)`` for every request and closes the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    stopped = threading.Event()

    def handle(connection: socket.socket) -> None:
        with connection:
            head = connection.recv(65536).decode()
            with suppress(OSError):
                answer(head.split(" ")[1] if " " in head else "", connection.sendall)

    def serve() -> None:
        while not stopped.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=handle, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stopped.set()
        listener.close()


def _http(body: object, status: str = "200 OK") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content


def _answering(body: object, status: str = "200 OK") -> Answer:
    """Ready, and then ``body`` for every query."""
    return lambda path, send: send(
        _http({} if path.endswith("/-/ready") else body, "200 OK" if "ready" in path else status)
    )


def _matrix(values: object, **labels: str) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": labels, "values": values}]}}


def _ask(url: str, **options: Any) -> list[DemandSeries]:
    more: dict[str, Any] = {"until_s": START_S + 3000, "retries": 0, "timeout_s": 0.5} | options
    return read_demand(url, QUERY, 3000, **more)


class TestFailingServers:
    def test_down(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        with pytest.raises(PrometheusError, match=rf"127\.0\.0\.1:{port} cannot be reached.*refused"):
            _ask(f"http://127.0.0.1:{port}")

    def test_stalling(self) -> None:
        with _tcp_server(lambda path, send: time.sleep(120)) as url:
            began = time.monotonic()
            with pytest.raises(PrometheusError, match=r"no answer within 0\.5 s.*longer timeout"):
                _ask(url)
            assert time.monotonic() - began < 60

    def test_dripping_byte_by_byte(self) -> None:
        def drip(path: str, send: Callable[[bytes], None]) -> None:
            send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            for _ in range(2400):
                send(b" ")
                time.sleep(0.05)

        with _tcp_server(drip) as url:
            began = time.monotonic()
            with pytest.raises(PrometheusError, match="no answer within"):
                _ask(url)
            assert time.monotonic() - began < 60

    def test_endless_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(prometheus, "MAX_ANSWER_BYTES", 1 << 20)

        def flood(path: str, send: Callable[[bytes], None]) -> None:
            send(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                send(b" " * 65536)

        with _tcp_server(flood) as url, pytest.raises(PrometheusError, match="larger than 1 MiB"):
            _ask(url, timeout_s=20)

    def test_overloaded_once_is_tried_again(self) -> None:
        calls: list[str] = []

        def answer(path: str, send: Callable[[bytes], None]) -> None:
            calls.append(path)
            busy = len(calls) in (1, 3)
            points = [[START_S + 300 * i, "7"] for i in range(1, 11)]
            send(_http({} if busy else _matrix(points, service="chat"), "503 Busy" if busy else "200 OK"))

        with _tcp_server(answer) as url:
            found = _ask(url, retries=2)
        assert found[0].value.tolist() == [7.0] * 10
        assert len(calls) == 4

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (_answering({"status": "error", "error": "query timed out"}, "503 No"), "503.*overloaded.*query timed out"),
            (_answering(b"<html>forbidden</html>", "403 No"), "403.*token.*forbidden"),
            (_answering(b"<html>hello</html>"), "did not answer like Prometheus"),
            (_answering(b""), "did not answer like Prometheus"),
            (_answering([]), "did not answer like Prometheus"),
            (_answering({"data": {"result": "x"}}), "did not answer like Prometheus"),
            (_answering({"data": {"result": [{"values": []}]}}), "not Prometheus"),
            (_answering(_matrix([[START_S, "x"]], service="chat")), "series 'chat': not a matrix"),
            (_answering(_matrix([[1, 2, 3]], service="chat")), "series 'chat': not a matrix"),
            (
                _answering(_matrix([[START_S + 300, "1"], [START_S + 300, "1"]], service="chat")),
                "row 1: .*the same time",
            ),
            (
                _answering(_matrix([[START_S + 300, "1"], [START_S + 301, "1"]], service="chat")),
                "row 1: .*whole number",
            ),
            (_answering(_matrix([[START_S + 300, "1"], [START_S + 9000, "1"]], service="chat")), "later times"),
            (_answering(_matrix([[START_S + 300, "-1"]], service="chat")), "series 'chat', row 0: value is -1"),
            (_answering(_matrix([], service="")), "no label 'service'"),
            (lambda path, send: None, "cannot be reached"),
            (lambda path, send: send(b"nonsense\r\n\r\n"), "cannot be reached|failed"),
            (lambda path, send: send(_http({}, "503 Starting")), "503; it is starting"),
        ],
    )
    def test_answers_that_are_no_demand(self, answer: Answer, message: str) -> None:
        with _tcp_server(answer) as url, pytest.raises(DemandDataError, match=f"(?s){message}"):
            _ask(url)

    def test_redirects_are_not_followed(self) -> None:
        asked: list[str] = []

        def other(path: str, send: Callable[[bytes], None]) -> None:
            asked.append(path)

        with _tcp_server(other) as elsewhere:
            head = f"HTTP/1.1 302 Found\r\nLocation: {elsewhere}/login\r\nContent-Length: 0\r\n\r\n".encode()
            refusal = pytest.raises(PrometheusError, match=f"redirects to {elsewhere}/login")
            with _tcp_server(lambda path, send: send(head)) as url, refusal:
                _ask(url, token="secret")
        assert not asked

    def test_words_of_the_server_cannot_steer_a_terminal(self) -> None:
        answer = _answering({"error": "\x1b[31mred\n" + "x" * 10_000}, "400 No")
        with _tcp_server(answer) as url, pytest.raises(PrometheusError) as caught:
            _ask(url)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 500

    def test_a_server_without_a_readiness_page_is_used(self) -> None:
        points = [[START_S + 300 * i, "7"] for i in range(1, 11)]

        def answer(path: str, send: Callable[[bytes], None]) -> None:
            missing = path.endswith("/-/ready")
            send(_http(_matrix(points, service="chat"), "404 Not Found" if missing else "200 OK"))

        with _tcp_server(answer) as url:
            assert len(_ask(url)[0]) == 10

    @pytest.mark.parametrize(
        "url", ["", "localhost:9090", "ftp://host", "file:///etc/passwd", "http://", "http://[::1", "http://h:99999"]
    )
    def test_addresses_that_are_none(self, url: str) -> None:
        with pytest.raises(PrometheusError, match="http"):
            _ask(url)

    @pytest.mark.parametrize(("since_s", "step_s"), [(0, 300), (100, 300), (float("nan"), 300), (1e15, 1), (300, 0)])
    def test_spans_that_are_none(self, since_s: float, step_s: int) -> None:
        with pytest.raises(DemandDataError, match="history"):
            read_demand("http://127.0.0.1:1", QUERY, since_s, step_s)

    def test_secrets_are_not_in_messages(self) -> None:
        with _tcp_server(_answering({"error": "no"}, "401 No")) as url, pytest.raises(PrometheusError) as caught:
            _ask(url.replace("http://", "http://user:geheim@"), token="sehrgeheim")
        assert "geheim" not in str(caught.value)

    def test_the_token_is_sent(self) -> None:
        heads: list[bytes] = []
        listener = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                heads.append(connection.recv(65536))
                connection.sendall(_http({}, "200 OK"))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with Server(f"http://127.0.0.1:{listener.getsockname()[1]}", token="abc", retries=0) as server:
            server.check_ready()
        thread.join(5)
        listener.close()
        assert b"Authorization: Bearer abc" in heads[0]


class _Ready(BaseHTTPRequestHandler):
    """Answers ``/-/ready`` as Prometheus does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"Prometheus Server is Ready.\n")

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_certificate_has_to_be_signed_by_the_authority_that_is_named(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    pair = authority.issue("server", "prometheus", hosts=["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    listening = ThreadingHTTPServer(("127.0.0.1", 0), _Ready)
    listening.socket = context.wrap_socket(listening.socket, server_side=True)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    url = f"https://127.0.0.1:{listening.server_port}"
    try:
        with Server(url, retries=0, authority=authority.certificate) as server:
            server.check_ready()
        for other in (None, stranger.certificate):
            with Server(url, retries=0, authority=other) as server, pytest.raises(PrometheusError):
                server.check_ready()
    finally:
        listening.shutdown()
        listening.server_close()
