"""Startup, readiness and liveness probes of a container."""

import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence

from controlplane.api import Object


class Probe:
    """A probe that is run from time to time, in a thread of its own.

    Until it first succeeds it is run more often than it says, so that tests need not wait; failures count by their
    time, so that a container has as long as with Kubernetes.
    """

    def __init__(
        self, spec: Object, container: Object, host: str, within: Callable[[Sequence[str]], Sequence[str]]
    ) -> None:
        """``within`` makes of a command what runs it in the container."""
        self._spec = spec
        self._within = within
        self._host = host
        self._ports = {port["name"]: port["containerPort"] for port in container.get("ports") or () if "name" in port}
        self._period_s: float = spec.get("periodSeconds", 10)
        self._thread: threading.Thread | None = None
        self.restart()

    def restart(self) -> None:
        """Forgets all results: the container starts anew."""
        self.passed = False
        self.failed = False
        self._successes = 0
        self._failing_since: float | None = None
        self._next = time.monotonic() + self._spec.get("initialDelaySeconds", 0)

    def run(self, env: Mapping[str, str]) -> None:
        """Starts the next check when it is due."""
        if time.monotonic() < self._next or (self._thread is not None and self._thread.is_alive()):
            return
        self._next = time.monotonic() + (self._period_s if self.passed else min(0.2, self._period_s))
        self._thread = threading.Thread(target=self._check, args=(env,), daemon=True)
        self._thread.start()

    def _check(self, env: Mapping[str, str]) -> None:
        if self._good(env):
            self._successes += 1
            self._failing_since = None
            if self._successes >= self._spec.get("successThreshold", 1):
                self.passed, self.failed = True, False
            return
        self._successes = 0
        self._failing_since = self._failing_since or time.monotonic()
        failures = self._spec.get("failureThreshold", 3) - (1 if self.passed else 0)
        if time.monotonic() - self._failing_since >= failures * self._period_s:
            self.passed, self.failed = False, True

    def _good(self, env: Mapping[str, str]) -> bool:
        timeout_s = self._spec.get("timeoutSeconds", 1)
        try:
            if "exec" in self._spec:
                command = self._within(self._spec["exec"]["command"])
                done = subprocess.run(command, env=dict(env), timeout=timeout_s, capture_output=True, check=False)
                return done.returncode == 0
            if "tcpSocket" in self._spec:
                with socket.create_connection((self._host, self._port(self._spec["tcpSocket"]["port"])), timeout_s):
                    return True
            return self._http_good(self._spec["httpGet"], timeout_s)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return False

    def _http_good(self, get: Object, timeout_s: float) -> bool:
        scheme = get.get("scheme", "HTTP").lower()
        url = f"{scheme}://{get.get('host', self._host)}:{self._port(get['port'])}{get.get('path', '/')}"
        headers = {header["name"]: header["value"] for header in get.get("httpHeaders") or ()}
        anyone = ssl._create_unverified_context()  # a kubelet does not check certificates of probes
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=timeout_s, context=anyone
        ) as answer:
            return 200 <= int(answer.status) < 400

    def _port(self, port: int | str) -> int:
        return port if isinstance(port, int) else int(self._ports.get(port, port))
