"""A network for the pods of one node: each has an address, ports and processes of its own, and names of Services.

Linux namespaces do it, so it needs root. All of it hangs on processes that end with the tests, however these end: the
bridge lies in a namespace of its own, each pod has one, and with them go addresses and routes.

There is no kube-proxy. The name of a Service leads to the addresses of its pods, ready ones unless it publishes
others, as with a headless Service; that of the API server leads to this machine.
"""

import contextlib
import itertools
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from controlplane.api import Api
from controlplane.kubelet.names import DOMAIN, NameServer
from controlplane.processes import NotReady, spawn, wait_for

_TOOLS = ("ip", "nsenter", "unshare", "mount")
_API_SERVER = "kubernetes.default.svc"
#: The niceness of a whole session.
_PREFERRED = -8


def lacking() -> str:
    """Why there can be no such network here; empty where there can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    done = subprocess.run(["unshare", "--net", "--mount", "ip", "link"], capture_output=True, check=False)
    return "" if done.returncode == 0 and os.geteuid() == 0 else "network namespaces need root"


class PodNetwork:
    """198.18.n.0/24 (set aside for tests by RFC 2544), reachable from this machine, which is its first address."""

    def __init__(self, api: Api, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(3)
        self._forwarders: dict[int, _Forwarder] = {}
        self._router = _Holder()
        self._connect_machine()
        self.gateway = f"{self._net}.1"
        self.names = NameServer(self.gateway, api)
        self.api_server = f"https://{self.lead_here(_API_SERVER, api.http.base_url.port or 443)}"

    def close(self) -> None:
        """Takes the network away; whatever still runs in a pod is killed."""
        self._router.kill()
        self.names.close()
        for forwarder in self._forwarders.values():
            forwarder.close()

    def lead_here(self, name: str, port: int, to_port: int = 0) -> str:
        """Leads ``NAME.NAMESPACE.svc`` to a port on this machine's loopback; returns ``NAME.NAMESPACE.svc:PORT``.

        ``to_port`` is that of the machine, 0 for the same.
        """
        if port not in self._forwarders:
            self._forwarders[port] = _Forwarder((self.gateway, port), ("127.0.0.1", to_port or port))
        self.names.fixed[name] = self.gateway
        return f"{name}:{port}"

    def pod(self, namespace: str) -> "PodSandbox":
        """Namespaces for one pod, with an address."""
        number = next(self._numbers)
        if number > 254:
            raise NotReady("this network has no address left")
        return PodSandbox(self, number, self.resolver(namespace))

    def resolver(self, namespace: str) -> Path:
        """A ``resolv.conf`` as pods of the namespace have it."""
        path = self._folder / f"{namespace}.resolv.conf"
        search = f"{namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}"
        path.write_text(f"nameserver {self.gateway}\nsearch {search}\noptions ndots:5\n")
        return path

    def with_names(self, namespace: str, command: Sequence[str | Path]) -> list[str]:
        """The command, to be run on this machine, but with the names that pods of the namespace know."""
        script = f'mount --bind "{self.resolver(namespace)}" /etc/resolv.conf && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, "sh", *map(str, command)]

    def attach(self, number: int, pid: int) -> str:
        """Connects the network namespace of a process; returns its address."""
        address = f"{self._net}.{number}"
        link, peer = f"pod{number}", ("peer", "name", "eth0", "netns", str(pid))
        _run("ip", "link", "add", link, "type", "veth", *peer, of=self._router)
        _run("ip", "link", "set", link, "master", "bridge", "up", of=self._router)
        inside = ("nsenter", "-t", str(pid), "-n", "ip")
        _run(*inside, "address", "add", f"{address}/24", "dev", "eth0")
        for name in ("lo", "eth0"):
            _run(*inside, "link", "set", name, "up")
        # Nothing lies behind it, but who looks up how it would reach the world finds its own address.
        _run(*inside, "route", "add", "default", "via", self.gateway)
        return address

    def _connect_machine(self) -> None:
        for number in random.SystemRandom().sample(range(256), 256):
            link = ("ip", "link", "add", f"kopt{number}", "type", "veth", "peer", "name", "machine")
            done = subprocess.run([*link, "netns", str(self._router.pid)], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
        else:
            raise NotReady(f"no network is free: {done.stderr}")
        self._net = f"198.18.{number}"
        _run("ip", "address", "add", f"{self._net}.1/24", "dev", f"kopt{number}")
        _run("ip", "link", "set", f"kopt{number}", "up")
        _run("ip", "link", "add", "bridge", "type", "bridge", of=self._router)
        for link in ("bridge", "machine"):
            _run("ip", "link", "set", link, *(("master", "bridge") if link == "machine" else ()), "up", of=self._router)


class PodSandbox:
    """The namespaces of a pod. ``ip`` is its address."""

    def __init__(self, network: PodNetwork, number: int, resolver: Path) -> None:
        self._holder = _Holder()
        self.ip = network.attach(number, self._holder.pid)
        #: Where the pod finds the API server.
        self.api_server = network.api_server
        self._mount(resolver, Path("/etc/resolv.conf"))
        self._short: dict[Path, Path] = {}
        self._bound: set[Path] = set()

    def command(self, command: Sequence[str]) -> list[str]:
        """What runs ``command`` as a container of the pod, with processes of its own."""
        script = str(Path(__file__).with_name("enter.py"))
        return [sys.executable, "-I", "-S", script, str(self._holder.pid), *command]

    def short(self, folder: Path) -> Path:
        """A short path to the folder, the same in each pod: what nodes of Ray tell each other holds for all."""
        if folder not in self._short:
            self._short[folder] = path = Path(tempfile.gettempdir(), f"pod{len(self._short) + 1}")
            path.mkdir(exist_ok=True)
            self._mount(folder, path)
        return self._short[folder]

    def bind(self, what: Path, where: Path) -> None:
        """Mounts a folder where the pod's containers look for it, as a runtime does; a second time nothing happens."""
        if where not in self._bound:
            self._bound.add(where)
            where.mkdir(parents=True, exist_ok=True)
            self._mount(what, where)

    def _mount(self, what: Path, where: Path) -> None:
        _run("nsenter", "-t", str(self._holder.pid), "-m", "mount", "--bind", str(what), str(where))

    @staticmethod
    def within(container: int, command: Sequence[str]) -> list[str]:
        """What runs ``command`` in a container that runs; ``container`` is the process of its ``command``."""
        return ["nsenter", "-t", str(child_of(container)), "-n", "-m", "-p", *command]

    @staticmethod
    def prefer(process: int) -> None:
        """Whoever asks for whole CPUs gets more of the machine's than other sessions, as by cgroups in a cluster.

        Ray ends a node whose agents take fifteen seconds to start, which they do among the processes of other tests.
        """
        with contextlib.suppress(OSError):  # a kernel without automatic groups
            Path(f"/proc/{process}/autogroup").write_text(str(_PREFERRED))

    def kill(self) -> None:
        """Its address is gone."""
        self._holder.kill()


class _Holder:
    """A process in new namespaces of network and mounts, which last as long as it or who entered them."""

    def __init__(self) -> None:
        command = ["unshare", "--net", "--mount", "sleep", "infinity"]
        self._process = spawn(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.pid = self._process.pid
        comm = Path(f"/proc/{self.pid}/comm")
        wait_for(lambda: comm.read_text() == "sleep\n", what="a process in namespaces of its own", every_s=0.01)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class _Forwarder:
    """Hands on connections to another address."""

    def __init__(self, listen: tuple[str, int], to: tuple[str, int]) -> None:
        self._to = to
        self._socket = socket.create_server(listen, backlog=128)
        threading.Thread(target=self._accept, name=f"forwarder {to[1]}", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._to)
        except OSError:
            client.close()
            return
        with client, server:
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            _copy(client, server)
            back.join()


def child_of(pid: int) -> int:
    """The only child of a process; raises FileNotFoundError or ValueError where there is none."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            target.sendall(chunk)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _run(*command: str, of: _Holder | None = None) -> None:
    """A command of iproute2 and its like, in the network namespace of ``of``; raises NotReady with its last words."""
    inside = ["nsenter", "-t", str(of.pid), "-n"] if of else []
    done = subprocess.run([*inside, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReady(f"{' '.join(command)}: {done.stderr.strip()}")
