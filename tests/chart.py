"""The chart, rendered and installed by the real helm."""

import json
import os
import pickle
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from controlplane.api import documents
from controlplane.plane import ControlPlane

Object: TypeAlias = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "chart"
NAMESPACE, RELEASE = "kopt-system", "kopt"
WITHOUT_DEFAULTS: Object = {name: {"enabled": False} for name in ("webhook", "sizing", "extender")}
"""Values that switch off what the chart installs unless it is told otherwise."""
_LEASES = "coordination.k8s.io/v1"
_WITH_VALUES = ("template", "lint", "install", "upgrade")
REGISTRY = "registry.example.com/kaiwo"
_RENDERED: dict[str, bytes] = {}
"""What the chart renders to by values and files, which many tests share: pickled, as reading YAML takes longer."""


class Helm:
    """The command, with everything it writes in ``folder``."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self._binary, self._folder = binary, folder
        self._numbers = iter(range(1_000_000))
        folder.mkdir(exist_ok=True)
        #: What every installation has to say; the values of a call come after it.
        self._base = folder / "base.yaml"
        # Definitions are upgraded by a pod, for which most tests have no node.
        self._base.write_text(yaml.safe_dump({"images": {"registry": REGISTRY}, "crds": {"upgrade": False}}))

    def run(self, *arguments: str | Path, values: Object | None = None) -> subprocess.CompletedProcess[str]:
        """Runs helm; the caller looks at the exit status."""
        verb, *rest = arguments
        base = ["--values", self._base] if verb in _WITH_VALUES else []
        command: list[str | Path] = [self._binary, verb, *base, *rest]
        if values is not None:
            path = self._folder / f"values-{next(self._numbers)}.yaml"
            path.write_text(yaml.safe_dump(values))
            command += ["--values", path]
        homes = {f"HELM_{name}_HOME": str(self._folder / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        # It ends before its memory would have to be looked through.
        memory = {"GOGC": "off", "GOMEMLIMIT": "1GiB"}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **homes, **memory}
        )

    def render(self, values: Object | None = None, files: Sequence[Path] = ()) -> list[Object]:
        """The objects that the chart renders to, without the custom resource definitions."""
        key = json.dumps([values or {}, [str(path) for path in files]], sort_keys=True)
        if key not in _RENDERED:
            options = [option for path in files for option in ("--values", path)]
            done = self.run("template", RELEASE, CHART, "--namespace", NAMESPACE, *options, values=values or {})
            assert done.returncode == 0, done.stderr
            _RENDERED[key] = pickle.dumps(documents(done.stdout))
        objects: list[Object] = pickle.loads(_RENDERED[key])
        return objects

    def install(self, plane: ControlPlane, values: Object, *options: str) -> None:
        """``helm upgrade --install`` into the labelled namespace."""
        plane.api.apply(yaml.safe_load((ROOT / "deploy" / "namespace.yaml").read_text()))
        command = ("upgrade", "--install", RELEASE, CHART, "--namespace", NAMESPACE)
        done = self.run(*command, "--kubeconfig", plane.kubeconfig, *options, values=values)
        assert done.returncode == 0, done.stderr

    def uninstall(self, plane: ControlPlane) -> None:
        """The chart is gone, and the Leases that its processes wrote."""
        self.run("uninstall", RELEASE, "--namespace", NAMESPACE, "--kubeconfig", plane.kubeconfig)
        for lease in plane.api.list(_LEASES, "Lease", NAMESPACE):
            plane.api.delete(_LEASES, "Lease", lease["metadata"]["name"], NAMESPACE)
