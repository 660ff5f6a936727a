"""The kubelet's device manager: devices of plugins that register, which pod has which, and the PodResources API.

A plugin registers at ``plugins/kubelet.sock``, is asked what devices it has, which it would prefer, and to allocate, as
``pkg/kubelet/cm/devicemanager`` does. Without a plugin the devices are those that a test names.
"""

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from controlplane.api import Object
from controlplane.kubelet.protocol import PLUGIN, POD_RESOURCES

_OF_PLUGIN, _OF_KUBELET = "/v1beta1.DevicePlugin/", "/v1beta1.Registration/"
_LIMIT_S = 10.0
Pick = Callable[[Sequence[str], int], Sequence[str]]


class NoDevices(Exception):
    """Fewer are free than a pod asks for: the kubelet does not admit it."""


def first(free: Sequence[str], count: int) -> Sequence[str]:
    """As the ids are sorted."""
    return free[:count]


@dataclass
class _Plugin:
    """What one resource has; ``ask`` calls a method of its plugin, None where a test named the devices."""

    devices: Sequence[str]
    ask: Callable[[str, Any, Any], Any] | None = None
    prefers: bool = False


@dataclass
class _Given:
    """What a pod's containers have: by container and resource."""

    namespace: str
    name: str
    devices: dict[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    env: dict[str, dict[str, str]] = field(default_factory=dict)


class DeviceManager:
    """Of one node. ``pick`` chooses among free devices where no plugin prefers some; ``resized`` is called with a
    resource's number of devices once a plugin tells it."""

    def __init__(
        self,
        devices: Mapping[str, Sequence[str]] | None = None,
        pick: Pick = first,
        resized: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kd"))
        self._pick, self._resized = pick, resized
        self._plugins = {name: _Plugin(list(ids)) for name, ids in (devices or {}).items()}
        self._given: dict[str, _Given] = {}
        self._lock = threading.Lock()
        self._channels = contextlib.ExitStack()
        self.claims: dict[str, list[tuple[str, str, str, str]]] = {}
        """By a pod's name: claim, driver, pool and device, as drivers of claims have prepared them."""
        self._servers = [
            _serve(
                self.pod_resources,
                "v1.PodResourcesLister",
                {"List": self._list, "GetAllocatableResources": self._offered},
            ),
            _serve(self.plugins / "kubelet.sock", "v1beta1.Registration", {"Register": self._registered}),
        ]

    @property
    def pod_resources(self) -> Path:
        """The socket of the PodResources API."""
        return self.folder / "r" / "kubelet.sock"

    @property
    def plugins(self) -> Path:
        """The folder of device plugins' sockets."""
        return self.folder / "p"

    def stop(self) -> None:
        for server in self._servers:
            server.stop(None)
        self._channels.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def capacity(self) -> dict[str, str]:
        return {name: str(len(plugin.devices)) for name, plugin in self._plugins.items()}

    def admit(self, pod: Object) -> dict[str, dict[str, str]]:
        """Give a pod its devices; the variables that plugins set in its containers. Raises NoDevices."""
        meta = pod["metadata"]
        given = _Given(meta["namespace"], meta["name"])
        with self._lock:
            for container in pod["spec"]["containers"]:
                for resource, amount in ((container.get("resources") or {}).get("limits") or {}).items():
                    if resource in self._plugins:
                        self._allocate(given, container["name"], resource, int(amount))
            self._given[meta["uid"]] = given
        return given.env

    def release(self, uid: str) -> None:
        """A pod has ended."""
        with self._lock:
            self._given.pop(uid, None)

    def of(self, name: str) -> list[str]:
        """The devices of a pod."""
        with self._lock:
            found = [given for given in self._given.values() if given.name == name]
            return sorted(device for given in found for devices in given.devices.values() for device in devices)

    def _allocate(self, given: _Given, container: str, resource: str, count: int) -> None:
        plugin = self._plugins[resource]
        pods = [*self._given.values(), given]
        taken = {one for each in pods for (_, of), ids in each.devices.items() if of == resource for one in ids}
        free = sorted(set(plugin.devices) - taken)
        if len(free) < count:
            raise NoDevices(f"{resource}: {count} requested, {len(free)} available")
        chosen = list(self._preferred(plugin, free, count) or self._pick(free, count))
        given.devices[container, resource] = chosen
        if plugin.ask is not None:
            request = PLUGIN["AllocateRequest"](container_requests=[{"devices_ids": chosen}])
            answer = plugin.ask("Allocate", request, PLUGIN["AllocateResponse"])
            entries = answer.container_responses[0].envs
            given.env.setdefault(container, {}).update({entry.key: entry.value for entry in entries})

    def _preferred(self, plugin: _Plugin, free: Sequence[str], count: int) -> Sequence[str]:
        if plugin.ask is None or not plugin.prefers:
            return ()
        wanted = {"available_deviceIDs": free, "must_include_deviceIDs": [], "allocation_size": count}
        request = PLUGIN["PreferredAllocationRequest"](container_requests=[wanted])
        answer = plugin.ask("GetPreferredAllocation", request, PLUGIN["PreferredAllocationResponse"])
        return list(answer.container_responses[0].deviceIDs)

    def _list(self, _request: bytes, _context: Any) -> bytes:
        with self._lock:
            pods = [_listed_pod(given, self.claims.get(given.name, ())) for given in self._given.values()]
        return bytes(POD_RESOURCES["ListPodResourcesResponse"](pod_resources=pods).SerializeToString())

    def _offered(self, _request: bytes, _context: Any) -> bytes:
        with self._lock:
            devices = [
                {"resource_name": name, "device_ids": list(plugin.devices)} for name, plugin in self._plugins.items()
            ]
        return bytes(POD_RESOURCES["AllocatableResourcesResponse"](devices=devices).SerializeToString())

    def _registered(self, request: bytes, _: Any) -> bytes:
        asked = PLUGIN["RegisterRequest"].FromString(request)
        channel = self._channels.enter_context(grpc.insecure_channel(f"unix:{self.plugins / asked.endpoint}", _OPTIONS))
        threading.Thread(target=self._follow, args=(channel, asked), daemon=True).start()
        return b""

    def _follow(self, channel: grpc.Channel, asked: Any) -> None:
        def ask(method: str, request: Any, answer: Any) -> Any:
            call = channel.unary_unary(f"{_OF_PLUGIN}{method}")
            return answer.FromString(call(request.SerializeToString(), timeout=_LIMIT_S, wait_for_ready=True))

        with contextlib.suppress(grpc.RpcError, ValueError):
            for told in channel.unary_stream(f"{_OF_PLUGIN}ListAndWatch")(b"", wait_for_ready=True):
                devices = PLUGIN["ListAndWatchResponse"].FromString(told).devices
                healthy = [device.ID for device in devices if device.health == "Healthy"]
                with self._lock:
                    prefers = asked.options.get_preferred_allocation_available
                    self._plugins[asked.resource_name] = _Plugin(healthy, ask, prefers)
                self._resized(asked.resource_name, len(healthy))


# The default is the path, escaped, which Go's HTTP/2 refuses.
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.default_authority", "localhost"))


def _serve(socket: Path, service: str, methods: Mapping[str, Callable[[bytes, Any], bytes]]) -> grpc.Server:
    socket.parent.mkdir(exist_ok=True)
    server = grpc.server(ThreadPoolExecutor(4))
    handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    return server


def _listed_pod(given: _Given, claims: Sequence[tuple[str, str, str, str]]) -> dict[str, Any]:
    containers: dict[str, dict[str, Any]] = {}
    for (container, resource), devices in given.devices.items():
        entry = containers.setdefault(container, {"name": container, "devices": [], "dynamic_resources": []})
        entry["devices"].append({"resource_name": resource, "device_ids": devices})
    if claims:
        entry = containers.setdefault("main", {"name": "main", "devices": [], "dynamic_resources": []})
        entry["dynamic_resources"] = list(_claimed(given.namespace, claims))
    return {"name": given.name, "namespace": given.namespace, "containers": list(containers.values())}


def _claimed(namespace: str, claims: Sequence[tuple[str, str, str, str]]) -> Iterator[dict[str, Any]]:
    for claim, driver, pool, device in claims:
        resources = [{"driver_name": driver, "pool_name": pool, "device_name": device}]
        yield {"claim_name": claim, "claim_namespace": namespace, "claim_resources": resources}
