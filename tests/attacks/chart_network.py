"""Which pods the chart starts, whom they call, and what network policies let through, as Kubernetes reads them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

import yaml

Object = dict[str, Any]
NAME_LABEL = "kubernetes.io/metadata.name"
PORTS = {"http": 80, "https": 443, "redis": 6379, "rediss": 6379}
OUTSIDE = "198.51.100.7"
"""An address that is no pod's."""
AUDIT_URL = "KOPT_AUDIT_URL"
SERVE = "kopt-predictions-serve-svc"
"""The Service that KubeRay makes for a RayService."""


@dataclass(frozen=True)
class Pod:
    """A pod of a template, or any other one; ``address`` where it is none."""

    name: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: Object = field(default_factory=dict, compare=False)
    address: str = ""

    @property
    def component(self) -> str:
        return self.labels.get("app.kubernetes.io/component", "")

    @property
    def account(self) -> tuple[str, str]:
        return self.namespace, str(self.spec.get("serviceAccountName", "default"))

    def ports(self) -> dict[str, int]:
        return {
            one["name"]: one["containerPort"]
            for container in self.spec.get("containers", ())
            for one in container.get("ports", ())
        }


@dataclass(frozen=True)
class Call:
    """Somebody calls; ``to`` has none where the service named has no pod."""

    caller: Pod
    said: str
    to: tuple[Pod, ...]
    port: int
    for_audit: bool = False
    """Whether it sends its records of the audit log, and asks nothing."""


def pods_of(objects: list[Object]) -> list[Pod]:
    return [
        Pod(name, space, template["metadata"]["labels"], template["spec"])
        for one in objects
        for name, space, template in _templates(one)
    ]


def _templates(one: Object) -> Iterator[tuple[str, str, Object]]:
    kind, name, space, spec = (
        one["kind"],
        one["metadata"]["name"],
        one["metadata"].get("namespace", ""),
        one.get("spec", {}),
    )
    if kind in ("Deployment", "DaemonSet"):
        yield name, space, spec["template"]
    if kind == "CronJob":
        yield name, space, spec["jobTemplate"]["spec"]["template"]
    if kind == "RayService":
        cluster = spec["rayClusterConfig"]
        yield f"{name}-head", space, cluster["headGroupSpec"]["template"]
        yield from ((f"{name}-worker", space, group["template"]) for group in cluster["workerGroupSpecs"])


def calls_of(objects: list[Object], api_server: tuple[str, int] = ("203.0.113.1", 443)) -> Iterator[Call]:
    """Everything that arguments, variables and configurations of our pods name, and the API server."""
    pods = pods_of(objects)
    for pod in pods:
        if pod.spec.get("automountServiceAccountToken"):
            yield Call(pod, "the API server", (Pod("api", address=api_server[0]),), api_server[1])
        for text in _texts(pod, objects):
            if "://" in text:
                yield _call(pod, text, objects, pods)
        for url in _values(pod, lambda name: name == AUDIT_URL):
            yield replace(_call(pod, url, objects, pods), for_audit=True)


def _texts(pod: Pod, objects: list[Object]) -> Iterator[str]:
    for container in pod.spec["containers"]:
        yield from (one.partition("=")[2] or one for one in container.get("args", ()))
    yield from _values(pod, lambda name: name != AUDIT_URL)
    mounted = {one["configMap"]["name"] for one in pod.spec.get("volumes", ()) if "configMap" in one}
    for one in objects:
        if one["kind"] == "ConfigMap" and one["metadata"]["name"] in mounted and "scheduler.yaml" in one["data"]:
            yield from (each["urlPrefix"] for each in yaml.safe_load(one["data"]["scheduler.yaml"])["extenders"])


def _values(pod: Pod, is_wanted: Callable[[str], bool]) -> Iterator[str]:
    for container in pod.spec["containers"]:
        yield from (str(one.get("value", "")) for one in container.get("env", ()) if is_wanted(one["name"]))


def _call(pod: Pod, url: str, objects: list[Object], pods: list[Pod]) -> Call:
    parts = urlsplit(url)
    port, host = parts.port or PORTS[parts.scheme], str(parts.hostname).split(".")
    if len(host) < 3 or host[2] != "svc":
        return Call(pod, url, (Pod(str(parts.hostname), address=OUTSIDE),), port)
    if host[0] == SERVE:
        return Call(pod, url, tuple(one for one in pods if one.name == "kopt-predictions-worker"), port)
    for one in objects:
        if one["kind"] == "Service" and (one["metadata"]["name"], one["metadata"]["namespace"]) == (host[0], host[1]):
            behind = behind_service(one, pods)
            return Call(pod, url, behind, target_port(one, port, behind))
    return Call(pod, url, (), port)


def behind_service(service: Object, pods: list[Pod]) -> tuple[Pod, ...]:
    """The pods of a Service; which of them leads is said while they run."""
    wanted = {key: value for key, value in service["spec"]["selector"].items() if key != "kaiwo.ai/leader"}
    space = service["metadata"]["namespace"]
    return tuple(one for one in pods if one.namespace == space and wanted.items() <= one.labels.items())


def target_port(service: Object, port: int, behind: tuple[Pod, ...]) -> int:
    (target,) = [one["targetPort"] for one in service["spec"]["ports"] if one["port"] == port]
    return int(behind[0].ports()[target]) if behind else 0


class Network:
    """The policies of one rendering."""

    def __init__(self, objects: list[Object]) -> None:
        self.policies = [one for one in objects if one["kind"] == "NetworkPolicy"]

    def lets(self, source: Pod, to: Pod, port: int) -> bool:
        """Whether a connection from one to the other is let through, at both ends."""
        return self._side("Egress", "egress", "to", source, to, port) and self._side(
            "Ingress", "ingress", "from", to, source, port
        )

    def _side(self, kind: str, rules: str, peers: str, own: Pod, other: Pod, port: int) -> bool:
        if own.address:
            return True
        near = [one["spec"] for one in self.policies if one["metadata"]["namespace"] == own.namespace]
        policies = [one for one in near if kind in one["policyTypes"] and selects(one["podSelector"], own.labels)]
        if not policies:
            return True
        found = [rule for one in policies for rule in one.get(rules, ())]
        return any(_port(rule, port) and self._peer(rule.get(peers), own, other) for rule in found)

    def _peer(self, peers: list[Object] | None, own: Pod, other: Pod) -> bool:
        return peers is None or any(_is_peer(one, own, other) for one in peers)


def _port(rule: Object, port: int) -> bool:
    ports = rule.get("ports")
    return not ports or any(one["port"] == port and one.get("protocol", "TCP") == "TCP" for one in ports)


def _is_peer(peer: Object, own: Pod, other: Pod) -> bool:
    if "ipBlock" in peer:
        if not other.address:
            return False
        block, address = peer["ipBlock"], ip_address(other.address)
        inside = address in ip_network(block["cidr"])
        return inside and not any(address in ip_network(one) for one in block.get("except", ()))
    if other.address:
        return False
    spaces = peer.get("namespaceSelector")
    near = other.namespace == own.namespace if spaces is None else selects(spaces, {NAME_LABEL: other.namespace})
    return near and selects(peer.get("podSelector") or {}, other.labels)


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """A label selector, as far as the chart uses them."""
    if not dict(selector.get("matchLabels") or {}).items() <= dict(labels).items():
        return False
    for one in selector.get("matchExpressions") or ():
        value = labels.get(one["key"])
        holds = {"Exists": value is not None, "In": value in one.get("values", ())}[one["operator"]]
        if not holds:
            return False
    return True
