"""One container as a process, with its log and the states that Kubernetes reports."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from controlplane.api import Object
from controlplane.kubelet.network import PodSandbox
from controlplane.kubelet.probes import Probe
from controlplane.processes import spawn

_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")

#: Seconds before a container that ended is started again: 10 s to 5 min in Kubernetes; tests do not wait so long.
FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 0.2, 5.0
_LONGEST_MESSAGE = 4096


class Container:
    """A container of a pod: started, watched, restarted and stopped by its pod's worker."""

    def __init__(self, spec: Object, folder: Path, host: str, sandbox: PodSandbox | None = None) -> None:
        self.spec = spec
        #: What it has now; a resize in place changes it while it runs.
        self.resources: Object = spec.get("resources") or {}
        self._sandbox = sandbox
        self.name: str = spec["name"]
        self.restarts = 0
        self.state: Object = {"waiting": {"reason": "ContainerCreating"}}
        self._last: Object = {}
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._not_before = 0.0
        self._probes = {kind: Probe(spec[kind], spec, host, self._within) for kind in _PROBES if kind in spec}
        self.env: Mapping[str, str] = {}

    @property
    def log(self) -> Path:
        """The running or last process's output."""
        return self._folder / f"{self.name}.{self.restarts}.log"

    @property
    def previous_log(self) -> Path:
        """The output before the last restart; may not exist."""
        return self._folder / f"{self.name}.{self.restarts - 1}.log"

    @property
    def running(self) -> bool:
        """Whether its process runs, as last polled."""
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        """The last exit code, 128 + n after signal n; None while it waits or runs."""
        ended = self.state.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    @property
    def may_start(self) -> bool:
        """Whether the back-off after its last end is over."""
        return time.monotonic() >= self._not_before

    @property
    def ready(self) -> bool:
        """Running, and started and ready by its probes."""
        probes = (self._probes.get("startupProbe"), self._probes.get("readinessProbe"))
        return self.running and all(probe.passed for probe in probes if probe is not None)

    @property
    def message_file(self) -> tuple[str, Path]:
        """Where the container writes its last words, and the file that stands for it."""
        return self.spec.get("terminationMessagePath") or "/dev/termination-log", self._folder / f"{self.name}.message"

    def start(self, command: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        """Starts the process; a command that cannot run ends it with 128, as container runtimes do."""
        if self.exit_code is not None:
            self._last = self.state
            self.restarts += 1
        self.env = env
        self.message_file[1].write_bytes(b"")
        command = self._sandbox.command(command) if self._sandbox else command
        with self.log.open("wb") as log:
            try:
                self._process = spawn(
                    command, cwd=folder, env=dict(env), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                )
            except OSError as problem:
                log.write(f"{problem}\n".encode())
                self._process = None
                self._ended(128, "StartError", str(problem), now())
                return
        if self._sandbox is not None and self.spec.get("resources", {}).get("requests", {}).get("cpu", "").isdecimal():
            self._sandbox.prefer(self._process.pid)
        self.state = {"running": {"startedAt": now()}}
        for probe in self._probes.values():
            probe.restart()

    def wait_with(self, reason: str, message: str = "") -> None:
        """Reports why it does not run yet; tries again in a second."""
        self._not_before = time.monotonic() + 1
        if self.exit_code is None:
            self.state = {"waiting": {"reason": reason, "message": message}}

    def poll(self) -> None:
        """Takes note of the process's end and of the probes."""
        if self._process is None or not self.running:
            return
        code = self._process.poll()
        if code is not None:
            code = code if code >= 0 else 128 - code
            self._ended(code, "Completed" if code == 0 else "Error", "", self.state["running"]["startedAt"])
            return
        started = self._probes.get("startupProbe")
        for kind, probe in self._probes.items():
            if kind == "startupProbe" or started is None or started.passed:
                probe.run(self.env)
            if kind != "readinessProbe" and probe.failed:
                self.kill()

    def terminate(self) -> None:
        """The preStop hook, if it is a command, then SIGTERM to the container's first process, as runtimes do."""
        if self._process is None or not self.running:
            return
        hook = self.spec.get("lifecycle", {}).get("preStop", {})
        if "exec" in hook:
            command = self._within(hook["exec"]["command"])
            subprocess.run(command, env=dict(self.env), timeout=60, check=False, capture_output=True)
        if "sleep" in hook:
            time.sleep(hook["sleep"]["seconds"])
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL to everything that the container started and that stayed in its session's process group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def status(self) -> Object:
        """An entry of ``containerStatuses``."""
        image = self.spec.get("image", "")
        return {
            "name": self.name,
            "image": image,
            "imageID": "",
            "restartCount": self.restarts,
            "ready": self.ready,
            "started": self.running,
            "state": self.state,
            "lastState": self._last,
            "containerID": f"process://{self._process.pid}" if self._process else "",
            "resources": self.resources,
            "allocatedResources": self.resources.get("requests", {}),
        }

    def _within(self, command: Sequence[str]) -> Sequence[str]:
        """What runs a command in the running container."""
        return self._sandbox.within(self._process.pid, command) if self._sandbox and self._process else command

    def _ended(self, code: int, reason: str, message: str, started: str) -> None:
        # What the container left running ends with it, as it would with its process namespace.
        self.kill()
        if not message:
            message = self.message_file[1].read_bytes()[:_LONGEST_MESSAGE].decode(errors="replace")
        wait = min(FIRST_BACK_OFF_S * 2**self.restarts, LONGEST_BACK_OFF_S)
        self._not_before = time.monotonic() + wait
        ended = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now()}
        self.state = {"terminated": {**ended, "message": message} if message else ended}


def now() -> str:
    """The time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
