"""Off loopback only who shows a certificate may call: a real scheduler with one binds through it, nobody else does."""

import asyncio
import shutil
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest
import uvloop
from controlplane.certificates import Authority, KeyPair
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import PATIENCE_S, free_port

from kopt.cluster.runtime.http import HttpServer, Reply, Request
from kopt.cluster.runtime.http.tls_files import TlsError, TlsFiles
from kopt.controllers.extender.configuration import scheduler_configuration
from tests.extender.conftest import RunningExtender, gpu_pod
from tests.extender.test_scheduling_by_the_policy import INDICES, bound

Start = Callable[..., RunningExtender]


class Certificates:
    """A folder as the Secret of a server is mounted, and the pair of a caller."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder, "authority")
        self.caller = self.authority.issue("caller", "kopt-scheduler")
        self.renew()
        shutil.copy(self.authority.certificate, folder / "ca.crt")

    def renew(self) -> None:
        pair = self.authority.issue("tls", "kopt-extender", hosts=["127.0.0.1"])
        assert pair.certificate == self.folder / "tls.crt"

    def context(self, caller: KeyPair | None) -> ssl.SSLContext:
        found = ssl.create_default_context(cafile=self.authority.certificate)
        if caller is not None:
            found.load_cert_chain(caller.certificate, caller.key)
        return found


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_a_scheduler_with_a_certificate_binds_and_others_are_not_heard(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start, certificates: Certificates, tmp_path: Path
) -> None:
    api = control_plane.api
    space = api.space("ext-tls")
    probes = free_port()
    with kwok.nodes(2, gpus=8) as nodes:
        extender = start_extender(control_plane, space, f"--tls={tmp_path}", f"--probe-port={probes}", wait=False)
        look = httpx.Client(base_url=f"http://127.0.0.1:{probes}", trust_env=False)
        extender.server.wait_until(lambda: look.get("/leads").is_success)
        secure = extender.url.replace("http", "https")
        caller = {
            "caFile": str(tmp_path / "ca.crt"),
            "certFile": str(certificates.caller.certificate),
            "keyFile": str(certificates.caller.key),
        }
        scheduler = control_plane.start_scheduler(scheduler_configuration(secure, space, tls=caller))
        try:
            for number in range(16):
                api.create(gpu_pod(f"p{number}", space, scheduler=space, selector=nodes.selector))
            for number in range(16):
                assert INDICES in bound(api, f"p{number}", space)["metadata"].get("annotations", {})
        finally:
            scheduler.kill()
        strangers = Authority(tmp_path, "strangers").issue("stranger", "kopt-scheduler")
        for stranger in (None, strangers):
            with (
                pytest.raises(httpx.TransportError),
                httpx.Client(verify=certificates.context(stranger), trust_env=False) as http,
            ):
                http.post(f"{secure}/bind", json={})
        with pytest.raises(httpx.TransportError):
            extender.http.post("/bind", json={})
        # Who may only look cannot bind.
        assert look.post("/bind", json={}).status_code == 404
        assert look.get("/metrics").is_success
        assert look.get("/explain", params={"pod": f"{space}/p0"}).json()["outcome"] == "bound"
        with httpx.Client(verify=certificates.context(certificates.caller), trust_env=False) as http:
            assert http.post(f"{secure}/filter", content=b"{").status_code == 400


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Both kinds of event loop: each has a TLS of its own."""
    with asyncio.Runner(loop_factory=request.param) as made:
        yield made


class Following:
    """A server that follows the files of a folder; it answers with the request's target, ``/slow`` when let."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates
        self.met, self.let = asyncio.Event(), asyncio.Event()
        self.port = 0

    async def __aenter__(self) -> "Following":
        files = TlsFiles(self._certificates.folder)
        self._http = HttpServer(self._answer, 1000)
        self.port = await self._http.start("127.0.0.1", 0, files.context)
        self._following = asyncio.create_task(files.run(self._http.end_connections, check_s=0.01))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._following.cancel()
        await self._http.stop()

    def _answer(self, request: Request) -> Reply | Awaitable[Reply]:
        if request.path != "/slow":
            return Reply.text(request.path)
        self.met.set()
        return self._slowly()

    async def _slowly(self) -> Reply:
        await self.let.wait()
        return Reply.text("at last")

    async def connect(self, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # A connection may be ended in its handshake, as the authority is replaced; then the next one tells.
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context, ssl_handshake_timeout=10)

    async def shown(self) -> int:
        """The serial number of the certificate that a new connection is shown."""
        _, writer = await self.connect(self._certificates.context(self._certificates.caller))
        serial = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
        writer.close()
        return int(serial, 16)


async def asked(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], path: str = "/") -> bytes:
    """The first bytes of the answer; empty where the connection ends without one."""
    reader, writer = stream
    try:
        writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        return await reader.read(12)
    except OSError:
        return b""


async def heard(server: Following, context: ssl.SSLContext) -> bytes:
    """The first bytes that a new connection is answered; empty where it is refused, at whatever moment."""
    try:
        return await asked(await server.connect(context))
    except OSError:
        return b""


def test_a_renewed_certificate_is_shown_and_a_broken_one_is_not(
    certificates: Certificates, runner: asyncio.Runner
) -> None:
    async def renewed() -> None:
        async with Following(certificates) as server, asyncio.timeout(PATIENCE_S):
            first = await server.shown()
            kept = await server.connect(certificates.context(certificates.caller))
            certificates.renew()
            while await server.shown() == first:
                await asyncio.sleep(0.02)
            second = await server.shown()
            assert await asked(kept) == b"HTTP/1.1 200", "who may call is the same: nobody is cut off"
            kept[1].close()
            (certificates.folder / "tls.key").write_text("no key")
            await asyncio.sleep(0.1)
            assert await server.shown() == second

    runner.run(renewed())


def test_whom_a_replaced_authority_let_in_is_not_heard_any_more(
    certificates: Certificates, runner: asyncio.Runner
) -> None:
    async def replaced() -> None:
        other = Authority(certificates.folder, "other")
        new_caller = other.issue("new-caller", "kopt-scheduler")
        old = certificates.context(certificates.caller)
        new = ssl.create_default_context(cafile=certificates.authority.certificate)
        new.load_cert_chain(new_caller.certificate, new_caller.key)
        async with Following(certificates) as server, asyncio.timeout(PATIENCE_S):
            idle, busy = await server.connect(old), await server.connect(old)
            assert await asked(idle) == b"HTTP/1.1 200"
            session = idle[1].get_extra_info("ssl_object").session
            assert not session.has_ticket, "a resumed session's certificate is not looked at"
            answer = asyncio.create_task(asked(busy, "/slow"))
            await server.met.wait()
            shutil.copy(other.certificate, certificates.folder / "ca.crt")
            while not await heard(server, new):
                await asyncio.sleep(0.02)
            assert await asked(idle) != b"HTTP/1.1 200", "an open connection ends"
            # With TLS 1.3 the client learns of its refusal from the first read.
            assert await heard(server, old) == b""
            server.let.set()
            assert await answer == b"HTTP/1.1 200", "what was asked before is answered"
            assert await asked(busy) != b"HTTP/1.1 200", "and nothing after it"

    runner.run(replaced())


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_a_file_that_is_not_there_is_named(certificates: Certificates, tmp_path: Path, name: str) -> None:
    (tmp_path / name).unlink()
    with pytest.raises(TlsError, match=name):
        TlsFiles(tmp_path)


def test_the_command_says_what_is_wrong_with_the_files(control_plane: ControlPlane, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from kopt.cli.main import app

    arguments = ["extender", "--kubeconfig", str(control_plane.kubeconfig), "--tls", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "tls.crt" in result.output
