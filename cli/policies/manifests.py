"""CompliancePolicies of files, or of the cluster."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kopt.cli.errors import Refused
from kopt.cli.open_cluster import open_cluster
from kopt.cli.queues.manifests import documents

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.core.workload.compliance import CompliancePolicy

T = TypeVar("T")
Declared = list[tuple["CompliancePolicy", dict[str, Any]]]
"""Policies, each with its document."""


def declared_in(files: Sequence[Path]) -> Declared:
    """The policies of files. Raises Refused for what cannot be read or meant."""
    from kopt.cluster.objects.custom.compliance_policy import API_VERSION, KIND, policy_of

    result: Declared = []
    for path in files:
        for number, document in enumerate(documents(path), 1):
            where = f"{path}, document {number}"
            if not isinstance(document, dict) or (document.get("apiVersion"), document.get("kind")) != (
                API_VERSION,
                KIND,
            ):
                raise Refused(f"{where}: this is no {KIND} of {API_VERSION}")
            try:
                result.append((policy_of(document), document))
            except ValueError as error:
                raise Refused(f"{where}: {error}") from None
    names = [policy.name for policy, _ in result]
    if twice := {name for name in names if names.count(name) > 1}:
        raise Refused(f"two CompliancePolicies are named {min(twice)}; rename one")
    if files and not result:
        raise Refused(f"there is no {KIND} in {', '.join(map(str, files))}; see docs/policies.md for one")
    return result


async def declared(kube: "Kube", files: Sequence[Path]) -> Declared:
    """Those of the files, else those of the cluster. Raises Refused, and ApiError."""
    from kopt.cluster.client.api import NotFound
    from kopt.cluster.client.resources import COMPLIANCE_POLICIES
    from kopt.cluster.objects.custom.compliance_policy import API_VERSION, KIND, policy_of

    if files:
        return declared_in(files)
    try:
        listed = (await kube.list(COMPLIANCE_POLICIES)).items
    except NotFound:
        raise Refused("CompliancePolicies are not installed in this cluster; the chart brings the CRD") from None
    result: Declared = []
    for item in listed:
        document = {"apiVersion": API_VERSION, "kind": KIND, **item}
        try:
            result.append((policy_of(document), document))
        except ValueError as error:
            raise Refused(f"CompliancePolicy {item['metadata']['name']}: {error}") from None
    return result


async def with_cluster(kubeconfig: Path | None, act: "Callable[[Kube], Awaitable[T]]") -> T:
    """What ``act`` answers; its errors in words. Raises Refused."""

    try:
        async with open_cluster(kubeconfig, forbidden="you may not do this") as kube:
            return await act(kube)
    except ValueError as error:
        raise Refused(str(error)) from None
