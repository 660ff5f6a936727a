"""Servers that speak Google's and Azure's protocols: fake-gcs-server and Azurite, each over a folder."""

import base64
import hashlib
import hmac
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote

import httpx
from controlplane import build
from controlplane.processes import Server, free_port

AZURITE = "azurite@3.35.0"
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Published with the emulator, so no secret."""
_VERSION = "2023-11-03"


@dataclass(frozen=True)
class Cloud:
    """A server with the bucket or container ``data``. ``variables`` are what a client needs in its environment."""

    scheme: str
    variables: Mapping[str, str]
    put: Callable[[str, bytes], None]


@contextmanager
def google(folder: Path) -> Iterator[Cloud]:
    """fake-gcs-server; it asks nobody who they are."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        build.binaries("gcs") / "fake-gcs-server",
        "-scheme",
        "http",
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
        "-public-host",
        f"127.0.0.1:{port}",
        "-external-url",
        url,
        "-backend",
        "memory",
    ]
    key = folder / "key.json"
    key.write_text(
        json.dumps(
            {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        )
    )
    server = Server("fake-gcs-server", command, folder)
    server.wait_until(lambda: httpx.post(f"{url}/storage/v1/b?project=p", json={"name": "data"}).status_code < 500)

    def put(name: str, content: bytes) -> None:
        where = {"uploadType": "media", "name": name}
        httpx.post(f"{url}/upload/storage/v1/b/data/o", params=where, content=content).raise_for_status()

    yield Cloud("gs", {"GOOGLE_SERVICE_ACCOUNT": str(key), "GOOGLE_ALLOW_HTTP": "true"}, put)
    server.stop()


@contextmanager
def azure(folder: Path) -> Iterator[Cloud]:
    """Azurite, from npm; raises FileNotFoundError where it cannot be had."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        "node",
        _azurite() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js",
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
        "--location",
        folder / "blobs",
        "--silent",
        "--skipApiVersionCheck",
        "--disableTelemetry",
    ]
    server = Server("azurite", command, folder)
    server.wait_until(lambda: _signed("PUT", url, f"/{ACCOUNT}/data", "restype:container").status_code in (201, 409))

    def put(name: str, content: bytes) -> None:
        _signed("PUT", url, f"/{ACCOUNT}/data/{quote(name)}", "", content).raise_for_status()

    variables = {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": url, "AZURE_ALLOW_HTTP": "true"}
    yield Cloud("az", variables, put)
    server.stop()


def _azurite() -> Path:
    """The folder that Azurite is installed in, once for all runs."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kopt" / AZURITE
    if not (cache / "whole").exists():
        options = ["--prefix", str(cache), "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        try:
            subprocess.run([npm, "install", *options, AZURITE], check=True, timeout=600)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise FileNotFoundError(f"{AZURITE} cannot be installed: {error}") from error
        (cache / "whole").touch()
    return cache


def _signed(verb: str, url: str, path: str, query: str, content: bytes = b"") -> httpx.Response:
    """A request with Azure's shared key; ``query`` is one parameter, as ``name:value``."""
    date = formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": _VERSION}
    if not query:
        headers["x-ms-blob-type"] = "BlockBlob"
    told = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    parts = [verb, "", "", str(len(content) or ""), *[""] * 8, f"{told}/{ACCOUNT}{path}"]
    digest = hmac.new(
        base64.b64decode(ACCOUNT_KEY), "\n".join([*parts, *filter(None, [query])]).encode(), hashlib.sha256
    )
    signature = base64.b64encode(digest.digest()).decode()
    headers |= {"authorization": f"SharedKey {ACCOUNT}:{signature}", "content-length": str(len(content))}
    parameters = dict([query.split(":")]) if query else {}
    return httpx.request(verb, url + path, params=parameters, headers=headers, content=content)
