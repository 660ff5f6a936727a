"""A controller at work with its account's own token, what that account was seen to do in the audit log, and what the
chart's rules let it do: as (verb, group, resource)."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from chart import NAMESPACE, Helm
from controlplane.api import Api, Refused
from controlplane.plane import ControlPlane
from controlplane.processes import Server, free_port, wait_for
from replicas import KOPT

Object = dict[str, Any]
Right = tuple[str, str, str]
_MAIN: Object = {"name": "main", "image": "theirs", "resources": {}}
_FOREIGN: tuple[Object, ...] = (
    {"spec": {"containers": [_MAIN | {"image": "evil"}]}},
    {"spec": {"activeDeadlineSeconds": 1}},
    {"spec": {"schedulingGates": []}},
    {"spec": {"nodeSelector": {"a": "b"}}},
    {"metadata": {"labels": {"app": "evil"}}},
    {"metadata": {"labels": {"theirs": None}}},
    {"metadata": {"annotations": {"theirs": "evil"}}},
    {"metadata": {"annotations": {"theirs": None}}},
    {"metadata": {"finalizers": ["evil/forever"]}},
)


def start_controller(
    plane: ControlPlane, charts: Helm, values: Object, account: str, replica: int = 0, options: Iterable[str] = ()
) -> tuple[Server, str]:
    """The process that the Deployment of the chart describes, with its account's token; and where its metrics are."""
    (deployment,) = (
        document
        for document in charts.render(values)
        if (document["kind"], document["metadata"]["name"]) == ("Deployment", account)
    )
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    local = [text for text in arguments if not text.startswith(("--host", "--port"))]
    name, port = f"{account}-{replica}", free_port()
    env = {
        "KUBECONFIG": str(plane.kubeconfig_for(account, NAMESPACE)),
        "POD_NAMESPACE": NAMESPACE,
        "POD_NAME": name,
    }
    server = plane.start_server(name, [*KOPT, *local, f"--port={port}", *options], env)
    return server, f"http://127.0.0.1:{port}/metrics"


@contextmanager
def leading(
    plane: ControlPlane, charts: Helm, values: Object, account: str, options: Iterable[str] = ()
) -> Iterator[Server]:
    """``start_controller`` from when it leads until the block ends, also by an error: one that went on leading would
    keep the next try from its Lease."""
    server, metrics = start_controller(plane, charts, values, account, options=options)
    leads = f"\n{account.replace('-', '_')}_leading 1.0"
    try:
        server.wait_until(lambda: leads in httpx.get(metrics, trust_env=False).text)
        yield server
    finally:
        server.stop()


def assert_off_unless_enabled(charts: Helm, enabled: Object, account: str, named: str = "", *more_kinds: str) -> None:
    """The chart installs nothing of a controller by default, and all of it with the values ``enabled``. ``named`` is
    in the names of all its objects, by default that of its account."""
    assert not [document for document in charts.render() if (named or account) in document["metadata"]["name"]]
    kinds = {document["kind"] for document in charts.render(enabled) if document["metadata"]["name"] == account}
    assert {"Deployment", "ServiceAccount", "ClusterRole", "Role", "NetworkPolicy", *more_kinds} <= kinds


def roles_of(charts: Helm, values: Object, *names: str) -> list[Object]:
    """The Roles and ClusterRoles of these names in the chart."""
    return [
        document
        for document in charts.render(values)
        if document["kind"] in ("Role", "ClusterRole") and document["metadata"]["name"] in names
    ]


def audited(plane: ControlPlane, account: str, since: datetime) -> list[Object]:
    """Entries of the service account's own requests about objects."""
    return [
        entry
        for entry in plane.audit_entries(account)
        if entry["user"]["username"].endswith(f":{account}")
        and "objectRef" in entry
        and datetime.fromisoformat(entry["requestReceivedTimestamp"]) >= since
    ]


def used(entries: Iterable[Object]) -> set[Right]:
    found = [(one["verb"], one["objectRef"]) for one in entries]
    return {
        (verb, place.get("apiGroup", ""), "/".join(filter(None, (place["resource"], place.get("subresource")))))
        for verb, place in found
    }


def granted(roles: Iterable[Object]) -> set[Right]:
    return {
        (verb, group, resource)
        for role in roles
        for rule in role["rules"]
        if "resources" in rule
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def assert_refused_nothing(entries: Collection[Object]) -> None:
    """Of an account at work, by the audit log."""
    refused = [entry for entry in entries if entry.get("responseStatus", {}).get("code") == 403]
    assert entries, "the audit log has nothing of it"
    assert not refused, refused


def assert_uses_its_rights(roles: Collection[Object], entries: Iterable[Object], seldom: Collection[Right]) -> None:
    """All that the roles grant but ``seldom``, which are rights for cases that did not come up."""
    unused, foreign = granted(roles) - used(entries) - set(seldom), set(seldom) - granted(roles)
    assert not unused, f"granted and never used: {unused}"
    assert not foreign, f"not granted at all: {foreign}"


def assert_changes_only_what_is_ours(plane: ControlPlane, account: str, namespace: str, *, gates: bool) -> None:
    """Of a pod; ``gates``: whether the service account may take gates of ours away."""
    stolen, meta = Api(Path(plane.kubeconfig_for(account, namespace))), {"theirs": "kept"}
    space, ours = plane.api.space("fenced"), "kaiwo.ai/ours"
    plane.api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "any", "namespace": space, "labels": meta, "annotations": meta},
            "spec": {
                "automountServiceAccountToken": False,
                "containers": [_MAIN],
                "schedulingGates": [{"name": "their/gate"}, {"name": ours}],
            },
        }
    )

    def refuses(change: Object) -> bool:
        try:
            stolen.patch("v1", "Pod", "any", change, space)
        except Refused as refused:
            return f"{account}-pods" in refused.message
        return False

    # Until the policy is in force only what harms nothing is tried.
    wait_for(lambda: refuses({"metadata": {"labels": {"app": "evil"}}}), what="the policy is in force")
    let_by = [change for change in _FOREIGN if not refuses(change)]
    assert not let_by, let_by
    assert not refuses({"metadata": {"annotations": {ours: "1"}, "labels": {ours: "1"}}})
    assert refuses({"spec": {"schedulingGates": [{"name": "their/gate"}]}}) is not gates
