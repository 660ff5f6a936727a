"""Forecasts for autoscalers are given to the API server alone, which has judged who asks: others do not pass TLS."""

import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from controlplane.certificates import Authority, KeyPair

from kopt.cluster.runtime.http import SMALL_BODY_BYTES, HttpServer
from kopt.cluster.runtime.http.tls_files import TlsFiles
from kopt.controllers.autoscaling.api import MetricsApi
from kopt.controllers.autoscaling.front_proxy import FrontProxy

ROOT = "/apis/external.metrics.k8s.io/v1beta1"


class Certificates:
    """The server's own CA, that of the API server's front proxy, and one of somebody else."""

    def __init__(self, folder: Path) -> None:
        self.ours, self.proxies, self.others = (Authority(folder, name) for name in ("ours", "proxies", "others"))
        serving = self.ours.issue("serving", "kopt-autoscaling", hosts=["127.0.0.1", "localhost"])
        self.folder = folder / "tls"
        self.folder.mkdir()
        (self.folder / "tls.crt").write_bytes(serving.certificate.read_bytes())
        (self.folder / "tls.key").write_bytes(serving.key.read_bytes())


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@contextlib.asynccontextmanager
async def serving(certificates: Certificates, names: frozenset[str], authority: bytes) -> AsyncIterator[str]:
    """As the process puts it together."""
    proxy = FrontProxy(authority, names)
    files = TlsFiles(certificates.folder, lambda: proxy.authority)
    server = HttpServer(MetricsApi(None).handle, SMALL_BODY_BYTES)
    server.admits = proxy.admits
    port = await server.start("127.0.0.1", 0, files.context)
    try:
        yield f"https://127.0.0.1:{port}{ROOT}"
    finally:
        await server.stop()


async def status(certificates: Certificates, url: str, caller: KeyPair | None) -> int:
    trust = ssl.create_default_context(cafile=str(certificates.ours.certificate))
    if caller is not None:
        trust.load_cert_chain(caller.certificate, caller.key)
    # Whoever says so in headers is believed by those who do not look at the certificate.
    headers = {"x-remote-user": "system:kube-controller-manager", "x-remote-group": "system:masters"}
    async with httpx.AsyncClient(verify=trust, trust_env=False) as client:
        return (await client.get(url, headers=headers)).status_code


async def test_only_the_front_proxy_gets_through(certificates: Certificates) -> None:
    proxy = certificates.proxies.issue("proxy", "front-proxy-client")
    other_name = certificates.proxies.issue("other", "another-extension")
    forged = certificates.others.issue("forged", "front-proxy-client")
    own = certificates.ours.issue("own", "front-proxy-client")
    authority = certificates.proxies.certificate.read_bytes()
    async with serving(certificates, frozenset({"front-proxy-client"}), authority) as url:
        for stranger in (None, forged, own, other_name):
            with pytest.raises(httpx.TransportError):
                await status(certificates, url, stranger)
        assert await status(certificates, url, proxy) == 200


async def test_nobody_gets_through_before_the_front_proxy_is_known(certificates: Certificates) -> None:
    proxy = certificates.proxies.issue("proxy", "front-proxy-client")
    async with serving(certificates, frozenset(), b"") as url:
        with pytest.raises(httpx.TransportError):
            await status(certificates, url, proxy)
