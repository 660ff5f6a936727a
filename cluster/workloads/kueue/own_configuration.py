"""Whether Kueue shares fairly, by its own configuration: the ConfigMap that its manifests and its chart mount.

Kueue reads the file when it starts, so that a change counts from its next start; and it may have been started with
another file, which nothing in the API says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kopt.cluster.client.api import Forbidden, Kube, NotFound
from kopt.cluster.client.errors import ApiError
from kopt.cluster.client.resources import CONFIG_MAPS, Object
from kopt.cluster.objects.fields import at, mapping, text
from kopt.formats.yaml_text import YamlError, load_yaml

NAME, NAMESPACE = "kueue-manager-config", "kueue-system"
FILE = "controller_manager_config.yaml"
_GROUP = "config.kueue.x-k8s.io/"


class FairSharing(StrEnum):
    """Whether weights of queues count."""

    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class FairSharingState:
    """``reason``: where that stands, or why it is not known."""

    state: FairSharing
    reason: str


async def fair_sharing(kube: Kube) -> FairSharingState:
    """Of the Kueue of a cluster, as far as it can be read: a failure is a reason, as this only adds to an answer."""
    try:
        documents = [await kube.get(CONFIG_MAPS, NAME, NAMESPACE)]
    except NotFound:
        try:
            documents = list((await kube.list(CONFIG_MAPS, field_selector=f"metadata.name={NAME}")).items)
        except Forbidden:
            why = f"there is no ConfigMap {NAMESPACE}/{NAME}, and you may not list those of other namespaces"
            return FairSharingState(FairSharing.UNKNOWN, why)
        except ApiError as error:
            return FairSharingState(FairSharing.UNKNOWN, f"ConfigMaps cannot be listed: {error}")
    except Forbidden:
        return FairSharingState(FairSharing.UNKNOWN, f"you may not read the ConfigMap {NAMESPACE}/{NAME}")
    except ApiError as error:
        return FairSharingState(FairSharing.UNKNOWN, f"the ConfigMap {NAMESPACE}/{NAME} cannot be read: {error}")
    return fair_sharing_of(documents)


def fair_sharing_of(documents: Sequence[Object]) -> FairSharingState:
    """By the ConfigMaps of that name. In v1beta1 `enable` says it, since v1beta2 that the field is there."""
    if len(documents) != 1:
        many = f"there are {len(documents)} ConfigMaps" if documents else "there is no ConfigMap"
        return FairSharingState(FairSharing.UNKNOWN, f"{many} {NAME}")
    where = f"ConfigMap {documents[0]['metadata']['namespace']}/{NAME}"
    try:
        configuration = mapping(load_yaml(text(documents[0], "data", FILE)))
    except YamlError as error:
        return FairSharingState(FairSharing.UNKNOWN, f"{where}, {FILE}: {error}")
    version = text(configuration, "apiVersion")
    if not version.startswith(_GROUP):
        return FairSharingState(FairSharing.UNKNOWN, f"{where} has no configuration of Kueue in {FILE}")
    field = configuration.get("fairSharing")
    is_on = at(configuration, "fairSharing", "enable") is True if version.endswith("v1beta1") else field is not None
    return FairSharingState(FairSharing.ON if is_on else FairSharing.OFF, where)
