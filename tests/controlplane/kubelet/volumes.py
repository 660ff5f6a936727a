"""A pod's volumes as folders, laid out below the pod's own one as a kubelet does."""

from collections.abc import Mapping
from pathlib import Path

import httpx
from controlplane.api import Api, Object, Refused
from controlplane.kubelet.environment import NotConfigured, References

_ROOT = Path("/")


def prepare(
    pod: Object, folder: Path, api: Api, references: References, pod_ip: str, root: Path = _ROOT
) -> dict[str, Path]:
    """Makes or finds the folder of every volume, by volume name; raises NotConfigured while one cannot be had.

    Paths of the host lie below ``root``.
    """
    return {
        volume["name"]: _Volume(pod, folder, volume, api, references, pod_ip, root).folder(volume)
        for volume in pod["spec"].get("volumes") or ()
    }


def refresh(pod: Object, folder: Path, api: Api, references: References, pod_ip: str) -> None:
    """Writes anew what volumes show of the pod itself: annotations and labels change while it runs."""
    for volume in pod["spec"].get("volumes") or ():
        _Volume(pod, folder, volume, api, references, pod_ip).refresh(volume)


def mounts(container: Object, volumes: Mapping[str, Path]) -> dict[str, Path]:
    """The folders by mount path."""
    result = {}
    for mount in container.get("volumeMounts") or ():
        target = volumes[mount["name"]] / mount.get("subPath", "")
        if mount.get("subPath") and not target.exists():
            target.mkdir(parents=True)
        result[mount["mountPath"]] = target
    for path, target in result.items():
        for outer, folder in result.items():
            _show_below(path, target, outer, folder)
    return result


def _show_below(path: str, target: Path, outer: str, folder: Path) -> None:
    """Lets whoever looks into the folder of an outer mount find the inner one there, as a link."""
    above = f"{outer.rstrip('/')}/"
    if path.startswith(above):
        link = folder / path.removeprefix(above)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(target)


_PLUGINS = {
    "emptyDir": "empty-dir",
    "secret": "secret",
    "configMap": "configmap",
    "projected": "projected",
    "downwardAPI": "downward-api",
}


class _Volume:
    def __init__(
        self,
        pod: Object,
        folder: Path,
        volume: Object,
        api: Api,
        references: References,
        pod_ip: str,
        root: Path = _ROOT,
    ) -> None:
        self._pod = pod
        self._root = root
        self._folder = folder
        plugin = next((plugin for kind, plugin in _PLUGINS.items() if kind in volume), "none")
        self._own = folder / f"kubernetes.io~{plugin}" / volume["name"]
        self._api = api
        self._references = references
        self._pod_ip = pod_ip
        self._namespace = pod["metadata"]["namespace"]

    def folder(self, volume: Object) -> Path:
        if "hostPath" in volume:
            return _host_path(volume["hostPath"], self._root)
        if "persistentVolumeClaim" in volume:
            return self._claimed(volume["persistentVolumeClaim"]["claimName"])
        self._own.mkdir(parents=True, exist_ok=True)
        if "emptyDir" in volume:
            return self._own
        mode = volume.get("projected", {}).get("defaultMode", 0o644)
        for source in volume["projected"]["sources"] if "projected" in volume else (volume,):
            self._write(source, mode)
        return self._own

    def refresh(self, volume: Object) -> None:
        for source in volume["projected"]["sources"] if "projected" in volume else (volume,):
            self._show(source)

    def _claimed(self, name: str) -> Path:
        try:
            claim = self._api.get("v1", "PersistentVolumeClaim", name, self._namespace)
        except (Refused, httpx.TransportError) as problem:
            raise NotConfigured(f'persistentvolumeclaim "{name}" not found: {problem}') from problem
        if claim.get("status", {}).get("phase") != "Bound":
            raise NotConfigured(f'persistentvolumeclaim "{name}" is not bound')
        spec = self._api.get("v1", "PersistentVolume", claim["spec"]["volumeName"])["spec"]
        source = spec.get("hostPath") or spec.get("local")
        if source is None:
            raise NotConfigured(f'persistentvolumeclaim "{name}" is bound to a volume that is no hostPath')
        path = _host_path(source, self._root)
        if "local" in spec:
            # Where a kubelet mounts it.
            mounted = self._folder / "kubernetes.io~local-volume" / claim["spec"]["volumeName"]
            mounted.parent.mkdir(parents=True, exist_ok=True)
            mounted.unlink(missing_ok=True)
            mounted.symlink_to(path)
        return path

    def _write(self, source: Object, mode: int) -> None:
        for kind, read in (("secret", self._references.secret), ("configMap", self._references.config_map)):
            if kind in source:
                chosen = source[kind]
                data = read(chosen.get("name") or chosen["secretName"], bool(chosen.get("optional")))
                items = {item["key"]: item["path"] for item in chosen.get("items") or ()}
                for key, content in data.items():
                    if not items or key in items:
                        self._put(items.get(key, key), content, chosen.get("defaultMode", mode))
        self._show(source)
        if "serviceAccountToken" in source:
            self._put(source["serviceAccountToken"]["path"], self._token(source["serviceAccountToken"]), 0o600)

    def _show(self, source: Object) -> None:
        """What is said of the pod itself; a file whose content is another is replaced as a whole."""
        for item in source.get("downwardAPI", {}).get("items") or ():
            if "fieldRef" in item:
                value = self._references.field(item["fieldRef"]["fieldPath"], self._pod_ip).encode()
                if not (self._own / item["path"]).exists() or (self._own / item["path"]).read_bytes() != value:
                    self._put(item["path"], value, 0o644)

    def _token(self, source: Object) -> bytes:
        """A token of the pod's service account that is void once the pod is gone."""
        account = self._pod["spec"].get("serviceAccountName", "default")
        meta = self._pod["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
        spec = {
            "audiences": [source["audience"]] if "audience" in source else [],
            "expirationSeconds": max(source.get("expirationSeconds", 3600), 600),
            "boundObjectRef": bound,
        }
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token"
        try:
            answer = self._api.request("POST", path, json={"spec": spec})
        except (Refused, httpx.TransportError) as problem:
            raise NotConfigured(f"no token for {self._namespace}/{account}: {problem}") from problem
        return str(answer.json()["status"]["token"]).encode()

    def _put(self, name: str, content: bytes, mode: int) -> None:
        path = self._own / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.fresh")
        fresh.touch(mode=0o600)
        fresh.write_bytes(content)
        # Without users of their own, the processes must be able to read what only the container's user might.
        fresh.chmod(mode | 0o400)
        fresh.rename(path)


def _host_path(source: Object, root: Path) -> Path:
    path = root / source["path"].lstrip("/")
    # Without a type nothing is checked, and container runtimes make the folder.
    if source.get("type", "") in {"", "DirectoryOrCreate"} and not path.exists():
        path.mkdir(parents=True, exist_ok=True)
    elif source.get("type") == "FileOrCreate":
        path.touch()
    if not path.exists():
        raise NotConfigured(f"hostPath {path} does not exist")
    return path
