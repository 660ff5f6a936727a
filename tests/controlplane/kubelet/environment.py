"""What a container's process gets to see: environment variables, and its command with both kinds of references."""

import base64
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
from controlplane.api import Api, Object, Refused

_REFERENCE = re.compile(r"\$\$|\$\(([^)]+)\)")


class NotConfigured(Exception):
    """A Secret, ConfigMap or key that the pod needs is not there (yet)."""


class References:
    """Looks up what a pod refers to, with the node's rights."""

    def __init__(self, api: Api, pod: Object) -> None:
        self._api = api
        self._pod = pod
        self._namespace = pod["metadata"]["namespace"]

    def secret(self, name: str, optional: bool = False) -> dict[str, bytes]:
        """The decoded data of a Secret of the pod's namespace."""
        data = self._object("Secret", name, optional).get("data") or {}
        return {key: base64.b64decode(value) for key, value in data.items()}

    def config_map(self, name: str, optional: bool = False) -> dict[str, bytes]:
        """The data of a ConfigMap of the pod's namespace."""
        found = self._object("ConfigMap", name, optional)
        binary = {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
        return {**{key: value.encode() for key, value in (found.get("data") or {}).items()}, **binary}

    def key(self, reference: Object, read: Callable[[str, bool], dict[str, bytes]]) -> bytes | None:
        """One key of what ``read`` finds; None where it is missing and optional."""
        optional = bool(reference.get("optional"))
        data = read(reference["name"], optional)
        if reference["key"] not in data and not optional:
            raise NotConfigured(f"couldn't find key {reference['key']} in {self._namespace}/{reference['name']}")
        return data.get(reference["key"])

    def field(self, path: str, pod_ip: str) -> str:
        """A field of the downward API, e.g. ``metadata.labels['app']`` or ``status.podIP``."""
        by_key = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
        if by_key:
            return str((self._pod["metadata"].get(by_key[1]) or {}).get(by_key[2], ""))
        if path in {"metadata.labels", "metadata.annotations"}:
            # Go's %q and JSON quote what tests write in the same way.
            found = self._pod["metadata"].get(path.partition(".")[2]) or {}
            return "".join(f"{key}={json.dumps(found[key], ensure_ascii=False)}\n" for key in sorted(found))
        if path in {"status.podIP", "status.podIPs"}:
            return pod_ip
        if path in {"status.hostIP", "status.hostIPs"}:
            return "127.0.0.1"
        value: Any = self._pod
        for part in path.split("."):
            value = value.get(part, "")
        return str(value)

    def _object(self, kind: str, name: str, optional: bool) -> Object:
        try:
            return self._api.get("v1", kind, name, self._namespace)
        except Refused as refused:
            if refused.status == 404 and optional:
                return {}
            raise NotConfigured(f'{kind.lower()} "{name}" not found: {refused.message}') from refused
        except httpx.TransportError as away:
            raise NotConfigured(str(away)) from away


def variables(container: Object, references: References, pod_ip: str, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a container on top of ``base``, in the order and with the expansions of Kubernetes."""
    result = dict(base)
    for source in container.get("envFrom") or ():
        for kind, read in (("secretRef", references.secret), ("configMapRef", references.config_map)):
            if kind in source:
                data = read(source[kind]["name"], bool(source[kind].get("optional")))
                result.update({source.get("prefix", "") + key: value.decode() for key, value in data.items()})
    for entry in container.get("env") or ():
        if "valueFrom" not in entry:
            result[entry["name"]] = expanded(entry.get("value", ""), result)
            continue
        found = _value_from(entry["valueFrom"], container, references, pod_ip)
        if found is not None:
            result[entry["name"]] = found
    return result


def _value_from(source: Object, container: Object, references: References, pod_ip: str) -> str | None:
    if "fieldRef" in source:
        return references.field(source["fieldRef"]["fieldPath"], pod_ip)
    if "resourceFieldRef" in source:
        part, _, name = source["resourceFieldRef"]["resource"].partition(".")
        return str((container.get("resources", {}).get(part) or {}).get(name, "0"))
    if "secretKeyRef" in source:
        found = references.key(source["secretKeyRef"], references.secret)
    elif "configMapKeyRef" in source:
        found = references.key(source["configMapKeyRef"], references.config_map)
    else:
        raise NotConfigured(f"this kubelet does not know the source {', '.join(source)}")
    return None if found is None else found.decode()


def expanded(text: str, values: Mapping[str, str]) -> str:
    """``$(NAME)`` replaced where NAME is known; ``$$`` is a dollar sign."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else values.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)


def relocated(text: str, mounts: Mapping[str, Path]) -> str:
    """Every path below a mount path, with the folder that stands for it; the longest mount path first."""
    folders = {mount.rstrip("/"): str(folder) for mount, folder in mounts.items()}
    if not folders:
        return text
    # All at once: a folder may itself lie below another mount path, e.g. /tmp.
    longest_first = "|".join(re.escape(mount) for mount in sorted(folders, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])({longest_first})(?=$|[^\w.-])", lambda match: folders[match[1]], text)
