"""Which ports a running platform listens on, and which of them ask for a secret: looked at, not assumed."""

import contextlib
import http.client
import ipaddress
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from kopt.serving.base.scratch import PREFIX

PATIENCE_S = 2.0
SERVE = ("ray::ServeReplica", "ray::ProxyActor", "haproxy")
"""Processes whose HTTP ports answer what the prediction endpoint's own port does, or pages about it."""


@dataclass(frozen=True)
class Listener:
    """A TCP port of the platform: ``what`` is a name of an address, serve, metrics or ray.

    ``secret``: connections need one.
    """

    what: str
    address: str
    port: int
    secret: bool

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback


def listeners(pids: Iterable[int], addresses: Mapping[str, str]) -> list[Listener]:
    """Ports of processes and of all that these started; ``addresses`` are the URLs that have a name."""
    import psutil

    names = {urlsplit(url).port: name for name, url in addresses.items()}
    listening: dict[tuple[str, int], Listener] = {}
    for pid in pids:
        family = []
        with contextlib.suppress(psutil.Error):
            family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        token = _ray_has_token(family)
        for process in family:
            with contextlib.suppress(psutil.Error):
                for socket in process.net_connections("tcp"):
                    if socket.status != psutil.CONN_LISTEN:
                        continue
                    # A socket for IPv6 writes an IPv4 address this way.
                    address, port = socket.laddr.ip.removeprefix("::ffff:"), socket.laddr.port
                    if (address, port) not in listening:
                        listening[address, port] = _listener(process.name(), address, port, names.get(port), token)
    return list(listening.values())


def rays_of_ours() -> set[int]:
    """Processes that run a Ray of this user's which we started: a training writes nothing into the home while it runs.

    Where what started a Ray is gone, what is left of that Ray.
    """
    import psutil

    pids: set[int] = set()
    for process in psutil.process_iter(["name", "cmdline", "uids", "ppid"]):
        about = process.info
        if about["name"] not in ("raylet", "gcs_server") or not about["uids"] or about["uids"].real != os.geteuid():
            continue
        if any(PREFIX in word for word in about["cmdline"] or ()):
            pids.add(process.pid if about["ppid"] in (None, 0, 1) else about["ppid"])
    return pids


def describe(listening: Sequence[Listener]) -> str:
    """A phrase for each kind: the named ones with their port, the others counted."""
    named = {each.what for each in listening} - {"serve", "metrics", "ray"}
    counted = Counter(
        (each.what, f"{each.address}:{each.port}" if each.what in named else each.address, each.secret)
        for each in listening
    )
    return ", ".join(
        f"{what} {'' if what in named else f'{count} on '}{where} "
        f"({'asks for a secret' if secret else 'open to every user of this machine'})"
        for (what, where, secret), count in sorted(counted.items())
    )


def _listener(process: str, address: str, port: int, name: str | None, token: bool) -> Listener:
    status = _status(address, port, "/")
    if name or process.startswith(SERVE):
        return Listener(name or "serve", address, port, token if status is None else status in (401, 403))
    if status is None:
        return Listener("ray", address, port, token)
    if status not in (401, 403) and _status(address, port, "/metrics") == 200:
        return Listener("metrics", address, port, False)
    return Listener("ray", address, port, status in (401, 403))


def _ray_has_token(family: Iterable[Any]) -> bool:
    """Does Ray ask for a token? Its ports that do not speak HTTP cannot be asked."""
    import psutil

    for process in family:
        with contextlib.suppress(psutil.Error):
            if process.name() == "raylet":
                return bool(process.environ().get("RAY_AUTH_MODE") == "token")
    return False


def _status(address: str, port: int, path: str) -> int | None:
    """What a GET without a secret gives; None where the port does not speak HTTP."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    link = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
    try:
        link.request("GET", path)
        return link.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        link.close()
