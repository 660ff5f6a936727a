"""What an account was seen to do in the audit log, and what the chart's rules let it do: as (verb, group, resource)."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from controlplane.api import Api, Refused
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

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
