"""What an account was seen to do in the audit log, and what the chart's rules let it do: as (verb, group, resource)."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from controlplane.plane import ControlPlane

Object = dict[str, Any]
Right = tuple[str, str, str]


def audited(plane: ControlPlane, account: str, since: datetime) -> list[Object]:
    """Entries of the service account's own requests about objects."""
    return [
        entry for entry in plane.audit_entries(account)
        if entry["user"]["username"].endswith(f":{account}") and "objectRef" in entry
        and datetime.fromisoformat(entry["requestReceivedTimestamp"]) >= since
    ]  # fmt: skip


def used(entries: Iterable[Object]) -> set[Right]:
    found = [(one["verb"], one["objectRef"]) for one in entries]
    return {
        (verb, place.get("apiGroup", ""), "/".join(filter(None, (place["resource"], place.get("subresource")))))
        for verb, place in found
    }


def granted(roles: Iterable[Object]) -> set[Right]:
    return {
        (verb, group, resource)
        for role in roles for rule in role["rules"] if "resources" in rule
        for verb in rule["verbs"] for group in rule["apiGroups"] for resource in rule["resources"]
    }  # fmt: skip
