"""A cluster that somebody else runs, named by KOPT_TEST_KUBECONFIG."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from controlplane.plane import Cluster, ControlPlane


class BorrowedCluster(Cluster):
    """What tests can do with any cluster; a test that asks for more (audit log, restarts) is skipped."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        super().__init__(_with_files(kubeconfig, folder), folder)

    def __getattr__(self, name: str) -> Any:
        if hasattr(ControlPlane, name) or name in {"audit_log", "audit_entries", "scheduler", "api_server", "etcd"}:
            pytest.skip(f"{name} needs a control plane of the tests' own: unset KOPT_TEST_KUBECONFIG")
        raise AttributeError(name)


def _with_files(kubeconfig: Path, folder: Path) -> Path:
    """A copy of the kubeconfig whose certificates and keys lie in files beside it."""
    document = yaml.safe_load(kubeconfig.read_text())
    for part, inner in (("clusters", "cluster"), ("users", "user")):
        for number, entry in enumerate(document[part]):
            settings = entry[inner]
            for key in [key for key in settings if key.endswith("-data")]:
                path = folder / f"{inner}-{number}-{key.removesuffix('-data')}"
                path.touch(mode=0o600)
                path.write_bytes(base64.b64decode(settings.pop(key)))
                settings[key.removesuffix("-data")] = str(path)
    copy = folder / "borrowed.kubeconfig"
    copy.touch(mode=0o600)
    copy.write_text(yaml.safe_dump(document))
    return copy
