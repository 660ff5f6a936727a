"""A small synchronous client of the API server for the tests themselves: decoded JSON in and out.

The product has its own (``kopt.cluster``); tests check that one against this one.
"""

import itertools
import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import yaml
from controlplane.processes import PATIENCE_S, wait_for

Object: TypeAlias = dict[str, Any]

_SPACES = itertools.count(1)
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_NEWS_S = 10.0
"""Within which webhooks hear of a new namespace."""


def has_condition(document: Object, kind: str) -> bool:
    """Whether the condition is in the object's status, and true."""
    conditions = document.get("status", {}).get("conditions") or ()
    return any((condition["type"], condition["status"]) == (kind, "True") for condition in conditions)


class Refused(Exception):
    """The API server answered with an error; ``status`` is HTTP's, ``message`` and ``reason`` the server's."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        try:
            body = response.json()
        except ValueError:
            body = {}
        self.reason = str(body.get("reason", "")) if isinstance(body, dict) else ""
        self.message = str(body.get("message", response.text)) if isinstance(body, dict) else response.text
        super().__init__(f"{self.status} {self.reason}: {self.message}")


class Api:
    """Speaks to the cluster that a kubeconfig names; objects are named by apiVersion and kind."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self._settings = _current(kubeconfig)
        self.url = str(self._settings["server"])
        self.authority = Path(self._settings["certificate-authority"])
        token = self._settings.get("token")
        self.http = httpx.Client(
            base_url=self.url,
            verify=_trust(self._settings),
            timeout=60,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            trust_env=False,
        )
        self._kinds: dict[tuple[str, str], tuple[str, bool]] = {}

    def close(self) -> None:
        """Closes the connections."""
        self.http.close()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Any request; raises Refused for an answer that is an error."""
        response = self.http.request(method, path, **options)
        if response.is_error:
            raise Refused(response)
        return response

    def path(self, api_version: str, kind: str, namespace: str = "", name: str = "") -> str:
        """The REST path of an object or, without a name, of its collection (``namespace`` "" for all)."""
        plural, namespaced = self._resource(api_version, kind)
        root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
        space = f"/namespaces/{namespace}" if namespaced and namespace else ""
        return f"{root}{space}/{plural}" + (f"/{name}" if name else "")

    def create(self, manifest: Object, **params: str) -> Object:
        """The object as the server stored it; ``generateName`` works."""
        path = self._path_of(manifest, collection=True)
        end_s = time.monotonic() + _NEWS_S
        while True:
            try:
                return dict(self.request("POST", path, json=manifest, params=params).json())
            except Refused as refused:
                # Kueue's webhook reads namespaces and owners of pods from a cache, in which a new one is not yet. Job
                # controllers try again, too.
                behind = "admission webhook" in refused.message and refused.message.endswith("not found")
                if not behind or time.monotonic() > end_s:
                    raise
            time.sleep(0.1)

    def apply(self, *manifests: Object) -> Object:
        """Server-side apply of each, forced; returns the last one."""
        stored: Object = {}
        for manifest in manifests:
            headers = {"Content-Type": _APPLY}
            params = {"fieldManager": "tests", "force": "true"}
            path = self._path_of(manifest)
            stored = self.request("PATCH", path, json=manifest, headers=headers, params=params).json()
        return stored

    def apply_files(self, paths: Iterable[Path]) -> None:
        """Applies every document of the YAML files."""
        for path in paths:
            self.apply(*load_all(path))

    def replace(self, manifest: Object) -> Object:
        """Creates the object, or puts it in the place of the one that is there."""
        try:
            return self.create(manifest)
        except Refused as refused:
            if refused.reason != "AlreadyExists":
                raise
        path = self._path_of(manifest)
        version = self.request("GET", path).json()["metadata"]["resourceVersion"]
        body = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}
        return dict(self.request("PUT", path, json=body).json())

    def get(self, api_version: str, kind: str, name: str, namespace: str = "default") -> Object:
        """The object; raises Refused with status 404 where there is none."""
        return dict(self.request("GET", self.path(api_version, kind, namespace, name)).json())

    def find(self, api_version: str, kind: str, name: str, namespace: str = "default") -> Object | None:
        """The object or None."""
        try:
            return self.get(api_version, kind, name, namespace)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def list(
        self, api_version: str, kind: str, namespace: str = "", labels: str = "", fields: str = ""
    ) -> list[Object]:
        """All objects, of all namespaces for "", that the label and field selectors leave."""
        params = {"labelSelector": labels, "fieldSelector": fields}
        answer = self.request("GET", self.path(api_version, kind, namespace), params=params)
        return list(answer.json()["items"])

    def patch(
        self, api_version: str, kind: str, name: str, change: Object, namespace: str = "default", subresource: str = ""
    ) -> Object:
        """Merge patch."""
        path = self.path(api_version, kind, namespace, name) + (f"/{subresource}" if subresource else "")
        return dict(self.request("PATCH", path, json=change, headers={"Content-Type": _MERGE}).json())

    def delete(self, api_version: str, kind: str, name: str, namespace: str = "default", **body: Any) -> None:
        """Deletes; an object that is not there is fine."""
        try:
            self.request("DELETE", self.path(api_version, kind, namespace, name), json=body or None)
        except Refused as refused:
            if refused.status != 404:
                raise

    def delete_all(self, api_version: str, kind: str, namespace: str = "", labels: str = "", **body: Any) -> None:
        """Deletes a collection, of one namespace where the kind has one."""
        path = self.path(api_version, kind, namespace)
        self.request("DELETE", path, params={"labelSelector": labels}, json=body or None)

    def namespace(
        self, name: str, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None
    ) -> str:
        """Makes a namespace that pods can be created in (its service account exists); returns its name."""
        meta = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        self.wait("v1", "ServiceAccount", "default", namespace=name)
        return name

    def space(self, word: str, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> str:
        """A namespace that nothing was ever in, named after ``word``: a test's second try must not meet the first's."""
        return self.namespace(f"{word}-{next(_SPACES)}", labels, annotations)

    def priority_class(self, name: str, value: int, preemption_policy: str = "PreemptLowerPriority") -> None:
        self.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
                "preemptionPolicy": preemption_policy,
            }
        )

    def wait(
        self,
        api_version: str,
        kind: str,
        name: str,
        until: Callable[[Object], object] = bool,
        namespace: str = "default",
        timeout_s: float = PATIENCE_S,
    ) -> Object:
        """The object once ``until`` is true of it; raises NotReady otherwise, with the last state."""
        seen: list[Object] = []

        def ready() -> Object | None:
            found = self.find(api_version, kind, name, namespace)
            seen[:] = [found] if found else []
            return found if found and until(found) else None

        try:
            return wait_for(ready, timeout_s, f"{kind} {namespace}/{name}") or {}
        except RuntimeError as late:
            late.add_note(yaml.safe_dump(seen))
            raise

    def token(self, service_account: str, namespace: str, seconds: int = 3600, audiences: Iterable[str] = ()) -> str:
        """A token of the service account from the TokenRequest API."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        spec: Object = {"expirationSeconds": seconds, "audiences": [*audiences]}
        return str(self.request("POST", path, json={"spec": spec}).json()["status"]["token"])

    def _path_of(self, manifest: Object, collection: bool = False) -> str:
        meta = manifest.get("metadata", {})
        name = "" if collection else meta["name"]
        return self.path(manifest["apiVersion"], manifest["kind"], meta.get("namespace") or "default", name)

    def _resource(self, api_version: str, kind: str) -> tuple[str, bool]:
        if (api_version, kind) not in self._kinds:
            root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
            for resource in self.request("GET", root).json()["resources"]:
                if "/" not in resource["name"]:
                    self._kinds[api_version, resource["kind"]] = (resource["name"], resource["namespaced"])
        if (api_version, kind) not in self._kinds:
            raise LookupError(f"the server knows no {kind} in {api_version}")
        return self._kinds[api_version, kind]


def load_all(path: Path) -> list[Object]:
    """The documents of a YAML file that are not empty."""
    return documents(path.read_text())


def documents(text: str) -> list[Object]:
    """The documents of a YAML stream that are not empty."""
    # libyaml where it is there: the custom resources are megabytes, and the pure loader takes seconds for each.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(text, loader) if document]


def kubeconfig(path: Path, server: str, authority: Path, user: Object) -> Path:
    """Writes a kubeconfig that only the owner may read; ``user`` as in its ``users[].user``."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document))
    return path


def _current(path: Path) -> Object:
    """Server, authority and credentials of the current context."""
    document = yaml.safe_load(path.read_text())
    named = {part: {one["name"]: one for one in document[part]} for part in ("clusters", "users", "contexts")}
    context = named["contexts"][document["current-context"]]["context"]
    cluster, user = named["clusters"][context["cluster"]]["cluster"], named["users"][context["user"]]["user"]
    return {**cluster, **user}


def _trust(settings: Object) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings["certificate-authority"])
    if "client-certificate" in settings:
        context.load_cert_chain(settings["client-certificate"], settings["client-key"])
    return context
