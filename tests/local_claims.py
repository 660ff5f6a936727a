"""Claims bound to folders of this machine, which pods mount as local volumes of a node."""

from pathlib import Path

from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane


def claim_folder(control_plane: ControlPlane, space: str, name: str, folder: Path, node: Kubelet) -> None:
    """The claim ``name``, bound to a local volume of the node; the volume is called SPACE-NAME."""
    folder.mkdir(parents=True)
    volume_name, api = f"{space}-{name}", control_plane.api
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}]}]
    volume = shared | {
        "capacity": {"storage": "1Gi"},
        "local": {"path": str(folder)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        "claimRef": {"namespace": space, "name": name},
    }
    claim = shared | {"volumeName": volume_name, "resources": {"requests": {"storage": "1Gi"}}}
    api.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume_name}, "spec": volume})
    metadata = {"name": name, "namespace": space}
    api.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim})
