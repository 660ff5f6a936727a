"""An API server without any process of ours, on which compliance policies are applied by the command."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from controlplane.plane import ControlPlane
from controlplane.processes import run_kopt, wait_for

CRD = Path(__file__).parents[2] / "deploy" / "chart" / "crds" / "compliancepolicies.yaml"
API = "admissionregistration.k8s.io/v1"
Object = dict[str, Any]


def policy(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "kaiwo.ai/v1alpha1",
        "kind": "CompliancePolicy",
        "metadata": {"name": name},
        "spec": spec,
    }


def pod(namespace: str, image: str = "registry.example.com/train:1", **spec: Any) -> Object:
    meta = spec.pop("metadata", {})
    container = {"name": "main", "image": image, **spec.pop("container", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "p-", "namespace": namespace, **meta},
        "spec": {"containers": [container], **spec},
    }


class Policies:
    """``kopt policies`` in front of a real API server."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.api, self._folder = plane, plane.api, folder

    def run(self, *arguments: str, document: Any = None) -> tuple[int, Any, str]:
        """Status, JSON answer (None without one), and what it said on stderr."""
        given: list[str] = []
        if document is not None:
            path = self._folder / "policies.yaml"
            path.write_text(yaml.safe_dump_all(document if isinstance(document, list) else [document]))
            given = ["-f", str(path)]
        done = run_kopt(*arguments, *given, "--kubeconfig", self.plane.kubeconfig, "-o", "json")
        return done.returncode, json.loads(done.stdout) if done.stdout.strip() else None, done.stderr

    def apply(self, document: Any) -> Any:
        status, answer, said = self.run("policies", "apply", document=document)
        assert status == 0, said
        return answer

    def refusal(self, manifest: Object) -> str:
        """What the API server says to a dry run; empty where it takes it."""
        response = self.api.http.post(
            self.api.path(manifest["apiVersion"], manifest["kind"], self._space(manifest)),
            json=manifest,
            params={"dryRun": "All"},
        )
        return "" if response.is_success else str(response.json()["message"])

    def warnings(self, manifest: Object) -> list[str]:
        """The warnings that the user sees."""
        response = self.api.http.post(
            self.api.path(manifest["apiVersion"], manifest["kind"], self._space(manifest)),
            json=manifest,
            params={"dryRun": "All"},
        )
        assert response.is_success, response.text
        return response.headers.get_list("warning")

    def in_force(self, violating: Object) -> str:
        """The message with which it is refused, once the API server has taken the policy up."""
        return wait_for(lambda: self.refusal(violating))

    @staticmethod
    def _space(manifest: Object) -> str:
        return str(manifest["metadata"]["namespace"])


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Not the one that other tests share: what is applied here judges every pod."""
    if os.environ.get("KOPT_TEST_KUBECONFIG"):
        pytest.skip("these tests have policies for the whole cluster: unset KOPT_TEST_KUBECONFIG")
    plane = ControlPlane(tmp_path_factory.mktemp("policy-plane"))
    plane.apply_crds([CRD])
    yield plane
    plane.stop()


@pytest.fixture
def policies(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Policies]:
    ours = Policies(control_plane, tmp_path)
    yield ours
    for item in ours.api.list("kaiwo.ai/v1alpha1", "CompliancePolicy"):
        ours.api.delete("kaiwo.ai/v1alpha1", "CompliancePolicy", item["metadata"]["name"])
    for part in ("Validating", "Mutating"):
        for kind in ("PolicyBinding", "Policy"):
            named = f"{part}Admission{kind}"
            for item in ours.api.list(API, named, labels="app.kubernetes.io/component=policies"):
                ours.api.delete(API, named, item["metadata"]["name"])
    # The API server judges by what it has taken up, for the next test as well.
    managed = ours.api.space("after", {"kaiwo.ai/managed": "true"})
    wait_for(lambda: not ours.refusal(pod(managed, "docker.io/evil:1")), what="the policies are forgotten")


@pytest.fixture
def space(policies: Policies) -> str:
    return policies.api.space("team", {"kaiwo.ai/managed": "true"})
