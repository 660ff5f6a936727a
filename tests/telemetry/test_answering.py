"""Text of ``/metrics`` is sent as it was made, compressed once for callers that take that."""

import gzip

import httpx
import pytest
from controlplane.processes import free_port

from kopt.agents.runtime import running
from kopt.agents.runtime.running import text_server


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [
        ("gzip", True),
        ("identity;q=1.0, GZIP ;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
        ("x-gzip, identity", False),
        ("", False),
    ],
)
async def test_callers_get_what_they_take(accepted: str, is_compressed: bool) -> None:
    text, port = b"kopt_gpu_up 1\n" * 500, free_port()
    async with (
        text_server(lambda: text, "127.0.0.1", port),
        httpx.AsyncClient(headers={"Accept-Encoding": accepted}, trust_env=False) as client,
    ):
        answer = await client.get(f"http://127.0.0.1:{port}/metrics")
    assert answer.content == text
    assert ("Content-Encoding" in answer.headers) == is_compressed
    assert (int(answer.headers["Content-Length"]) < len(text)) == is_compressed


async def test_each_path_has_its_own_text() -> None:
    port = free_port()
    async with (
        text_server(lambda: b"a 1\n", "127.0.0.1", port, {"/metrics/faults": lambda: b"b 1\n"}),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        assert [(await client.get(path)).text for path in ("/metrics", "/metrics/faults")] == ["a 1\n", "b 1\n"]
        other = await client.get("/metrics/other")
    assert (other.status_code, other.text) == (404, "there is /metrics and /metrics/faults\n")


async def test_a_text_is_compressed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, made, port = [b"a 1\n", b"a 2\n"], list[bytes](), free_port()
    compress = gzip.compress
    monkeypatch.setattr(
        running.gzip, "compress", lambda plain, *more, **rest: made.append(plain) or compress(plain, *more, **rest)
    )
    async with text_server(lambda: texts[0], "127.0.0.1", port), httpx.AsyncClient(trust_env=False) as client:
        for _ in range(3):
            assert (await client.get(f"http://127.0.0.1:{port}/metrics")).text == "a 1\n"
        texts.pop(0)
        assert (await client.get(f"http://127.0.0.1:{port}/metrics")).text == "a 2\n"
    assert made == [b"a 1\n", b"a 2\n"]
