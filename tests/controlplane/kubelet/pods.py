"""The life of one pod on the node, from its volumes to its deletion, in a thread of its own."""

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from controlplane.api import Api, Object, Refused, kubeconfig
from controlplane.kubelet import volumes
from controlplane.kubelet.containers import Container, now
from controlplane.kubelet.environment import NotConfigured, References, expanded, relocated, variables
from controlplane.kubelet.network import PodSandbox
from controlplane.kubelet.node_logs import NodeLogs

_TICK_S = 0.05
_PATCH = "application/strategic-merge-patch+json"


class PodWorker:
    """Runs a pod until it is deleted, reports its status, and cleans up."""

    def __init__(
        self,
        pod: Object,
        api: Api,
        authority: Path,
        folder: Path,
        pod_ip: str,
        entrypoints: Mapping[str, Sequence[str]],
        sandbox: PodSandbox | None = None,
        of_devices: Mapping[str, Mapping[str, str]] | None = None,
        root: Path | None = None,
    ) -> None:
        """``of_devices`` are variables that device plugins set, by container; ``root`` is the node's file system."""
        self._root = root
        self._logs = NodeLogs(root, pod) if root is not None else None
        self._of_devices = of_devices or {}
        self.pod = pod
        self._sandbox = sandbox
        self._entrypoints = entrypoints
        self._api = api
        self._authority = authority
        self._pod_ip = pod_ip
        self._folder = folder
        self._folder.mkdir(parents=True)
        spec = pod["spec"]
        self._inits = [Container(one, folder, pod_ip, sandbox) for one in spec.get("initContainers") or ()]
        self._mains = [Container(one, folder, pod_ip, sandbox) for one in spec["containers"]]
        self._volumes: dict[str, Path] = {}
        #: Folders outside its own, for the short path.
        self._links: list[Path] = []
        self._shown = pod
        self._phase = "Pending"
        self._reason = ""
        self._started = now()
        self._reported: Object = {}
        #: Value and time of the last change by kind of condition.
        self._since: dict[str, tuple[bool, str]] = {}
        self._kill_now = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"pod {pod['metadata']['name']}", daemon=True)
        self._thread.start()

    def update(self, pod: Object) -> None:
        """The pod as the server has it now; a deletion timestamp begins its end."""
        self.pod = pod

    def abandon(self) -> None:
        """The pod is gone from the server, or the kubelet stops: everything is killed at once."""
        self._kill_now.set()

    def join(self, timeout_s: float = 10.0) -> None:
        """Waits until everything of the pod is gone."""
        self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        """Whether it still runs or reports."""
        return self._thread.is_alive()

    def container(self, name: str) -> Container | None:
        """A container by name."""
        return next((one for one in (*self._inits, *self._mains) if one.name == name), None)

    @property
    def _sidecars(self) -> list[Container]:
        return [one for one in self._inits if one.spec.get("restartPolicy") == "Always"]

    @property
    def _ending(self) -> bool:
        return self._kill_now.is_set() or "deletionTimestamp" in self.pod["metadata"]

    def _run(self) -> None:
        try:
            if self._set_up() and self._initialise():
                self._work()
            self._hold()
            self._terminate()
        finally:
            self._kill_all()
            if self._sandbox is not None:
                self._sandbox.kill()
            for folder in (self._folder, *self._links):
                shutil.rmtree(folder, ignore_errors=True)

    def _set_up(self) -> bool:
        """Makes the volumes, tried again every second; False when the pod is deleted first."""
        references = References(self._api, self.pod)
        while not self._ending:
            try:
                self._volumes = volumes.prepare(
                    self.pod, self._folder / "volumes", self._api, references, self._pod_ip, self._root or Path("/")
                )
                return True
            except NotConfigured as missing:
                for container in (*self._inits, *self._mains):
                    container.wait_with("ContainerCreating", str(missing))
                self._report()
                self._pause(1.0)
        return False

    def _initialise(self) -> bool:
        """Runs the init containers one after the other; False when one fails for good or the pod is deleted."""
        for container in self._inits:
            sidecar = container in self._sidecars
            while not (container.ready if sidecar else container.exit_code == 0):
                if self._ending:
                    return False
                if container.exit_code not in (None, 0) and not sidecar and self._policy == "Never":
                    self._phase = "Failed"
                    return False
                self._keep_running(container)
                self._poll(self._sidecars)
                self._pause(_TICK_S)
        return True

    def _work(self) -> None:
        """Keeps the containers running until all of them have ended for good."""
        self._phase = "Running"
        began = time.monotonic()
        while not self._ending:
            self._show_changes()
            for container in (*self._sidecars, *self._mains):
                self._keep_running(container)
            if self._finished():
                break
            limit = self.pod["spec"].get("activeDeadlineSeconds")
            if limit is not None and time.monotonic() - began > limit:
                self._phase, self._reason = "Failed", "DeadlineExceeded"
                self._stop(self._mains, grace_s=self._grace_s)
                break
            self._pause(_TICK_S)

    def _show_changes(self) -> None:
        """Volumes that show the pod itself, where it has changed; its resources, as it was resized."""
        if self.pod is not self._shown:
            self._shown = self.pod
            for spec in self._shown["spec"]["containers"]:
                if (container := self.container(spec["name"])) is not None:
                    container.resources = spec.get("resources") or {}
            references = References(self._api, self._shown)
            volumes.refresh(self._shown, self._folder / "volumes", self._api, references, self._pod_ip)

    def _finished(self) -> bool:
        if not all(self._ended_for_good(one) for one in self._mains):
            return False
        self._phase = "Succeeded" if all(one.exit_code == 0 for one in self._mains) else "Failed"
        self._stop(self._sidecars, grace_s=self._grace_s)
        return True

    def _keep_running(self, container: Container) -> None:
        """Starts a container that should run and does not."""
        container.poll()
        if not container.running and container.may_start and not self._ended_for_good(container):
            self._start(container)
        if self._logs is not None:
            self._logs.copy(container)
        self._report()

    def _ended_for_good(self, container: Container) -> bool:
        if container.exit_code is None or container in self._sidecars:
            return False
        policy = "OnFailure" if container in self._inits and self._policy == "Always" else self._policy
        return policy == "Never" or (policy == "OnFailure" and container.exit_code == 0)

    def _start(self, container: Container) -> None:
        asked = volumes.mounts(container.spec, self._volumes)
        mounts = self._with_short_tmp(self._mounted(asked))
        home = self._folder / "home" / container.name
        home.mkdir(parents=True, exist_ok=True)
        own = container.spec.get("command") or ()
        image = () if own else self._entrypoint(container.spec.get("image", ""))
        if not (own or image):
            container.wait_with("CreateContainerError", "this kubelet has no images: give the container a command")
            return
        command = [*own, *(container.spec.get("args") or ())]
        try:
            base = self._base(home, {**asked, **mounts}) | dict(self._of_devices.get(container.name, {}))
            env = variables(container.spec, References(self._api, self.pod), self._pod_ip, base)
        except NotConfigured as missing:
            container.wait_with("CreateContainerConfigError", str(missing))
            return
        mounts = {**mounts, container.message_file[0]: container.message_file[1]}
        env = {key: value if base.get(key) == value else relocated(value, mounts) for key, value in env.items()}
        # What stands for an image lies on this machine, maybe under a path where the pod mounts something of its own.
        arguments = [*image, *(relocated(expanded(part, env), mounts) for part in command)]
        folder = Path(relocated(container.spec.get("workingDir", ""), mounts) or home)
        container.start(arguments, env, folder)

    def _mounted(self, mounts: dict[str, Path]) -> dict[str, Path]:
        """Mounts folders where the pod has them, as runtimes do, and returns those that it could not.

        Programs find them without being told, and what pods tell each other holds for all. Only with a root of the
        node's own, as the mount points are made on this machine. /tmp stays: what runs here lies below it.
        """
        if self._sandbox is None or self._root is None:
            return mounts
        bound = {path: folder for path, folder in mounts.items() if path != "/tmp" and folder.is_dir()}
        for path in sorted(bound):
            self._sandbox.bind(bound[path], Path(path))
        return {path: folder for path, folder in mounts.items() if path not in bound}

    def _with_short_tmp(self, mounts: dict[str, Path]) -> dict[str, Path]:
        """The path of a Unix socket has 107 bytes at most, and those of Ray below /tmp need most of them."""
        if "/tmp" in mounts and self._sandbox is not None:
            mounts["/tmp"] = self._sandbox.short(mounts["/tmp"])
        elif "/tmp" in mounts:
            self._links.append(Path(tempfile.mkdtemp(prefix="k")))
            link = self._links[-1] / "t"
            link.symlink_to(mounts["/tmp"])
            mounts["/tmp"] = link
        return mounts

    def _entrypoint(self, image: str) -> Sequence[str]:
        """What stands for an image, by its name without registry, tag and digest."""
        name = image.split("@")[0].rpartition("/")[2].split(":")[0]
        return self._entrypoints.get(name, ())

    def _base(self, home: Path, mounts: dict[str, Path]) -> dict[str, str]:
        """What a container runtime sets, and the way to the API server with the pod's own token."""
        url = httpx.URL(self._sandbox.api_server) if self._sandbox else self._api.http.base_url
        programs = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
        base = {
            "PATH": programs,
            "HOME": str(home),
            "HOSTNAME": self.pod["metadata"]["name"],
            "KUBERNETES_SERVICE_HOST": url.host,
            "KUBERNETES_SERVICE_PORT": str(url.port),
        }
        if "/tmp" in mounts:
            base["TMPDIR"] = str(mounts["/tmp"])
        account = mounts.get("/var/run/secrets/kubernetes.io/serviceaccount")
        if account is not None:
            user = {"tokenFile": str(account / "token")}
            base["KUBECONFIG"] = str(kubeconfig(home / "kubeconfig", str(url), self._authority, user))
        return base

    @property
    def _policy(self) -> str:
        return str(self.pod["spec"].get("restartPolicy", "Always"))

    @property
    def _grace_s(self) -> float:
        asked = self.pod["metadata"].get("deletionGracePeriodSeconds")
        usual = self.pod["spec"].get("terminationGracePeriodSeconds", 30)
        return float(usual if asked is None else asked)

    def _hold(self) -> None:
        """After its end a pod stays to be read until somebody deletes it."""
        while not self._ending:
            self._report()
            self._pause(_TICK_S)

    def _terminate(self) -> None:
        """SIGTERM, grace, SIGKILL; then the last status, and the pod may vanish."""
        if self._kill_now.is_set():
            return
        self._stop(self._mains, self._grace_s)
        self._stop(self._sidecars, 2.0)
        if self._phase in {"Pending", "Running"}:
            good = bool(self._mains) and all(one.exit_code == 0 for one in self._mains)
            self._phase = "Succeeded" if good else "Failed"
        self._report()
        meta = self.pod["metadata"]
        conditions = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        while not self._kill_now.is_set():
            try:
                self._api.delete("v1", "Pod", meta["name"], meta["namespace"], **conditions)
            except Refused as refused:
                if refused.status == 409:  # another pod of this name by now
                    return
            except httpx.TransportError:
                pass  # the API server may be away for a while
            else:
                return
            self._pause(0.5)

    def _stop(self, containers: Iterable[Container], grace_s: float) -> None:
        chosen = [one for one in containers if one.running]
        hooks = [threading.Thread(target=one.terminate, daemon=True) for one in chosen]
        for hook in hooks:
            hook.start()
        deadline = time.monotonic() + grace_s
        while any(one.running for one in chosen) and time.monotonic() < deadline and not self._kill_now.is_set():
            self._poll(chosen)
            time.sleep(_TICK_S)
        for one in chosen:
            one.kill()
            one.poll()

    def _kill_all(self) -> None:
        for one in (*self._mains, *self._inits):
            one.kill()

    @staticmethod
    def _poll(containers: Iterable[Container]) -> None:
        for one in containers:
            one.poll()

    def _pause(self, seconds: float) -> None:
        self._kill_now.wait(seconds)

    def _report(self) -> None:
        """Patches the pod's status where it changed."""
        status = self._status()
        if status == self._reported or self._kill_now.is_set():
            return
        meta = self.pod["metadata"]
        path = self._api.path("v1", "Pod", meta["namespace"], meta["name"]) + "/status"
        body = {"metadata": {"uid": meta["uid"]}, "status": status}
        try:
            self._api.request("PATCH", path, json=body, headers={"Content-Type": _PATCH})
        except Refused as refused:
            # Gone, or another pod under the same name: the watch will say so. Anything else is tried again.
            if refused.status not in (404, 409, 422):
                return
        except httpx.TransportError:
            return
        self._reported = status

    def _status(self) -> Object:
        ready = self._phase == "Running" and all(one.ready for one in (*self._sidecars, *self._mains))
        initialised = self._phase != "Pending"
        reason = "PodCompleted" if self._phase == "Succeeded" else ""
        flags = {"Initialized": initialised, "ContainersReady": ready, "Ready": ready}
        status: Object = {
            "phase": self._phase,
            "hostIP": "127.0.0.1",
            "podIP": self._pod_ip,
            "podIPs": [{"ip": self._pod_ip}],
            "startTime": self._started,
            "conditions": [self._condition(kind, value, reason) for kind, value in flags.items()],
            "containerStatuses": [one.status() for one in self._mains],
            "initContainerStatuses": [self._init_status(one) for one in self._inits],
        }
        if self._reason:
            status["reason"] = self._reason
        return status

    def _init_status(self, container: Container) -> dict[str, Any]:
        status = container.status()
        return status if container in self._sidecars else {**status, "ready": container.exit_code == 0}

    def _condition(self, kind: str, value: bool, reason: str) -> Object:
        if self._since.get(kind, (None,))[0] is not value:
            self._since[kind] = (value, now())
        condition = {"type": kind, "status": str(value), "lastTransitionTime": self._since[kind][1]}
        return {**condition, "reason": reason} if reason and not value else condition
