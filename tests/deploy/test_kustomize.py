"""The Kustomize bases beside the chart: by the real kustomize each is what the chart renders, and is accepted."""

import runpy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import ROOT
from controlplane import build
from controlplane.api import documents
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
Object = dict[str, Any]
FOLDER = ROOT / "deploy" / "kustomize"
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "kustomize_bases.py"))
BUILDS = {"base": "", **{f"overlays/{name}": values for name, values in SCRIPT["OVERLAYS"].items()}}


@pytest.fixture(scope="module")
def kustomize() -> Callable[[Path], list[Object]]:
    """``kustomize(folder)``: the objects that the real command builds."""
    binary = build.binaries("kustomize") / "kustomize"

    def built(folder: Path) -> list[Object]:
        done = subprocess.run([binary, "build", folder], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return documents(done.stdout)

    return built


@pytest.mark.parametrize("folder", BUILDS)
def test_a_base_is_what_the_chart_renders(folder: str, helm: Path, kustomize: Callable[[Path], list[Object]]) -> None:
    built = {SCRIPT["key_of"](item): item for item in kustomize(FOLDER / folder)}
    rendered = {SCRIPT["key_of"](item): item for item in SCRIPT["rendered"](str(helm), BUILDS[folder])}
    assert rendered.keys() == built.keys(), "run: python scripts/kustomize_bases.py"
    differing = [key for key, item in rendered.items() if item != built[key]]
    assert not differing, "run: python scripts/kustomize_bases.py"


def test_no_base_holds_a_key_or_says_that_helm_manages_it(kustomize: Callable[[Path], list[Object]]) -> None:
    for folder in BUILDS:
        for item in kustomize(FOLDER / folder):
            assert item["kind"] != "Secret", item["metadata"]["name"]
            assert "Helm" not in (item["metadata"].get("labels") or {}).values()


def test_the_base_is_accepted_by_an_api_server(
    control_plane: ControlPlane, kustomize: Callable[[Path], list[Object]]
) -> None:
    objects = kustomize(FOLDER / "base")
    early = [item for item in objects if item["kind"] in ("CustomResourceDefinition", "Namespace")]
    control_plane.api.apply(*early)
    for item in (item for item in early if item["kind"] == "CustomResourceDefinition"):
        # As they are: a chart that other tests install here has to agree with every word of them.
        spec = item["spec"]
        served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        wait_for(lambda path=served: control_plane.api.http.get(path).is_success, what=served)
    headers = {"Content-Type": "application/apply-patch+yaml"}
    params = {"fieldManager": "kustomize", "force": "true", "dryRun": "All", "fieldValidation": "Strict"}
    for item in objects:
        _, _, namespace, name = SCRIPT["key_of"](item)
        path = control_plane.api.path(item["apiVersion"], item["kind"], namespace, name)
        control_plane.api.request("PATCH", path, json=item, headers=headers, params=params)


def test_images_are_named_in_an_overlay_of_ones_own(tmp_path: Path, kustomize: Callable[[Path], list[Object]]) -> None:
    own = ROOT / "build" / f"kustomize-{tmp_path.name}"
    own.mkdir(parents=True)
    image = {"name": "registry.example.com/gpu/kopt-controllers", "newName": "ours.example.com/kopt", "newTag": "1"}
    try:
        text = yaml.safe_dump({"resources": ["../../deploy/kustomize/base"], "images": [image]})
        (own / "kustomization.yaml").write_text(text)
        deployments = [item for item in kustomize(own) if item["kind"] == "Deployment"]
        used = {each["image"] for item in deployments for each in item["spec"]["template"]["spec"]["containers"]}
        assert used == {"ours.example.com/kopt:1"}
    finally:
        (own / "kustomization.yaml").unlink()
        own.rmdir()
