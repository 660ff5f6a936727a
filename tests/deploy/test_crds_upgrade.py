"""A new version of the chart brings its custom resource definitions into a cluster that has older ones: by a Job before
the upgrade and by `kopt crds`, with no more rights than that, and never at the price of what is stored."""

import copy
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import CHART, NAMESPACE, RELEASE, ROOT, WITHOUT_DEFAULTS, Helm
from controlplane.api import Api, Refused
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import run_kopt, wait_for
from replicas import KOPT

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
Object = dict[str, Any]
DEFINITION = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
POOL = ("kaiwo.ai/v1alpha2", "KaiwoPool")
VALUES: Object = {**WITHOUT_DEFAULTS, "crds": {"upgrade": True}}
ADDED, CREATED = "topologyName", "nodehealths.kaiwo.ai"
"""What the older chart has not: a field of KaiwoPools, and a kind."""


def _definition(folder: Path) -> Object:
    document: Object = yaml.safe_load((folder / "crds" / "kaiwopools.yaml").read_text())
    return document


def _fields(document: Object) -> Object:
    properties: Object = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"][
        "properties"
    ]
    return properties


def _without(folder: Path, field: str) -> Path:
    """A chart whose KaiwoPools have no such field."""
    shutil.copytree(CHART, folder)
    document = _definition(folder)
    del _fields(document)[field]
    (folder / "crds" / "kaiwopools.yaml").write_text(yaml.safe_dump(document))
    return folder


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane whose only definitions are those of these tests."""
    plane = ControlPlane(tmp_path_factory.mktemp("crds-control-plane"))
    plane.api.apply(yaml.safe_load((ROOT / "deploy" / "namespace.yaml").read_text()))
    yield plane
    plane.stop()


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = _without(tmp_path_factory.mktemp("older") / "chart", ADDED)
    (folder / "crds" / "nodehealths.yaml").unlink()
    return folder


@pytest.fixture(scope="module")
def installed(plane: ControlPlane, charts: Helm, older: Path) -> Iterator[ControlPlane]:
    """The older chart, a KaiwoPool by its definition, and a node that runs the Job."""
    done = _upgrade(charts, plane, older)
    assert done.returncode == 0, done.stderr
    plane.api.create(_pool("kept", capacity={"gpu": 8}))
    # Pods get no variables of this process: the tree that is tested is named.
    tree = ["env", f"PYTHONPATH={ROOT / 'src'}", *KOPT]
    with Kubelet(plane, entrypoints={"kopt-controllers": tree}):
        yield plane
        charts.uninstall(plane)


def _upgrade(charts: Helm, plane: ControlPlane, chart: Path) -> "subprocess.CompletedProcess[str]":
    command = ("upgrade", "--install", RELEASE, chart, "--namespace", NAMESPACE, "--timeout=100s")
    return charts.run(*command, "--kubeconfig", plane.kubeconfig, values=VALUES)


def _pool(name: str, **spec: Any) -> Object:
    return {"apiVersion": POOL[0], "kind": POOL[1], "metadata": {"name": name}, "spec": spec}


def _kopt(kubeconfig: Path, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return run_kopt("crds", *arguments, "--kubeconfig", kubeconfig)


def _logs(plane: ControlPlane) -> str:
    """What the pods of the Job printed."""
    pods = plane.api.list("v1", "Pod", NAMESPACE, labels="app.kubernetes.io/component=crds")
    paths = (f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/log" for pod in pods)
    return "".join(plane.api.request("GET", path).text for path in paths)


def _spec(api: Api) -> Object:
    spec: Object = api.get(*DEFINITION, "kaiwopools.kaiwo.ai", "")["spec"]
    return spec


def test_an_upgrade_brings_the_new_field_and_the_new_kind_and_loses_no_object(
    installed: ControlPlane, charts: Helm
) -> None:
    api, new = installed.api, _pool("new", topologyName="racks")
    with pytest.raises(Refused, match=ADDED):
        api.create(new, fieldValidation="Strict")
    before = api.get(*POOL, "kept", "")
    rows = json.loads(_kopt(installed.kubeconfig, "list", "-o", "json").stdout)["definitions"]
    listed = {row["name"]: row["state"] for row in rows}
    assert (listed["kaiwopools.kaiwo.ai"], listed[CREATED]) == ("changed", "missing")
    assert set(listed.values()) == {"changed", "missing", "current"}

    done = _upgrade(charts, installed, CHART)

    assert done.returncode == 0, done.stderr + _logs(installed)
    wait_for(lambda: api.create(new, fieldValidation="Strict", dryRun="All"), what="the field is served")
    assert api.get(*DEFINITION, CREATED, "")["spec"]["names"]["kind"] == "NodeHealth"
    assert api.get(*POOL, "kept", "") == before
    assert json.loads(_kopt(installed.kubeconfig, "diff", "-o", "json").stdout)["changes"] == []
    for kind in ("ServiceAccount", "ConfigMap"):
        assert api.find("v1", kind, "kopt-crds", NAMESPACE) is None, "the account outlives the upgrade"
    assert api.find("rbac.authorization.k8s.io/v1", "ClusterRole", "kopt-crds", "") is None


@pytest.mark.long
def test_what_is_in_use_is_not_dropped_and_the_release_stays_as_it_was(
    installed: ControlPlane, charts: Helm, tmp_path: Path
) -> None:
    api, without = installed.api, _without(tmp_path / "chart", "capacity")
    before = _spec(api)
    done = _upgrade(charts, installed, without)
    assert done.returncode != 0
    # helm says which Job failed, and with its log why and what to do.
    assert "pre-upgrade hooks failed" in done.stderr
    printed = done.stdout + done.stderr
    assert "it drops spec.capacity, and you may not list kaiwopools.kaiwo.ai" in printed, printed
    assert "run kopt crds apply with an administrator's rights" in printed
    assert f"{NAMESPACE}/kopt-crds" in done.stderr or "job kopt-crds failed" in done.stderr, done.stderr
    assert "it drops spec.capacity, and you may not list kaiwopools.kaiwo.ai" in _logs(installed)
    assert api.find("rbac.authorization.k8s.io/v1", "ClusterRole", "kopt-crds", "") is None, "its rights stay"
    (job,) = api.list("batch/v1", "Job", NAMESPACE)
    assert job["metadata"]["name"] == "kopt-crds"
    assert _spec(api) == before
    assert api.get(*POOL, "kept", "")["spec"]["capacity"] == {"gpu": 8}

    refused = _kopt(installed.kubeconfig, "apply", "-f", without / "crds")
    assert refused.returncode == 1
    assert "it drops spec.capacity, which 1 object use: kept" in refused.stderr
    assert _spec(api) == before

    api.patch(*POOL, "kept", {"spec": {"capacity": None}}, "")
    done = _kopt(installed.kubeconfig, "apply", "-f", without / "crds")
    assert done.returncode == 0, done.stderr
    assert "capacity" not in _fields(api.get(*DEFINITION, "kaiwopools.kaiwo.ai", ""))
    assert "capacity" in done.stdout
    assert _kopt(installed.kubeconfig, "apply").returncode == 0
    assert "capacity" in _fields(api.get(*DEFINITION, "kaiwopools.kaiwo.ai", ""))


def test_its_account_may_change_our_definitions_and_nothing_else(installed: ControlPlane, charts: Helm) -> None:
    hooks = [item for item in charts.render(VALUES) if item["metadata"]["name"] == "kopt-crds"]
    api = installed.api
    api.apply(*(item for item in hooks if item["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")))
    (role,) = [item for item in hooks if item["kind"] == "ClusterRole"]
    assert [rule["resources"] for rule in role["rules"]] == [["customresourcedefinitions"]]
    stolen = Api(installed.kubeconfig_for("kopt-crds", NAMESPACE))
    ours = _definition(CHART)
    foreign = copy.deepcopy(ours)
    foreign["metadata"]["name"] = "others.example.com"
    foreign["spec"] |= {"group": "example.com", "names": {"kind": "Other", "plural": "others"}}
    wait_for(lambda: _allowed(stolen, ours), what="the role is in force")
    assert not _allowed(stolen, foreign)
    for verb in (lambda: stolen.list(*DEFINITION, ""), lambda: stolen.delete(*DEFINITION, CREATED, "")):
        with pytest.raises(Refused):
            verb()
    with pytest.raises(Refused):
        stolen.list(*POOL, "")


def _allowed(api: Api, document: Object) -> bool:
    try:
        return bool(api.apply(document))
    except Refused as refused:
        if refused.status != 403:
            raise
        return False


def test_definitions_that_others_own_are_left_to_them(installed: ControlPlane, tmp_path: Path) -> None:
    api, name = installed.api, "evictions.kaiwo.ai"
    path = tmp_path / "evictions.yaml"
    document: Object = yaml.safe_load((CHART / "crds" / "evictions.yaml").read_text())
    api.delete(*DEFINITION, name, "")
    wait_for(lambda: api.find(*DEFINITION, name, "") is None, what="it is gone")
    older = copy.deepcopy(document)
    older["spec"]["versions"][0]["additionalPrinterColumns"].pop()
    api.apply(older)
    path.write_text(yaml.safe_dump(document))
    before = api.get(*DEFINITION, name, "")["spec"]
    left = _kopt(installed.kubeconfig, "apply", "-f", path)
    assert left.returncode == 0, left.stderr
    assert f"{name} is left to tests" in left.stdout + left.stderr
    assert api.get(*DEFINITION, name, "")["spec"] == before
    assert _kopt(installed.kubeconfig, "apply", "-f", path, "--force-conflicts").returncode == 0
    stored = api.get(*DEFINITION, name, "")["spec"]["versions"][0]
    assert stored["additionalPrinterColumns"] == document["spec"]["versions"][0]["additionalPrinterColumns"]


@pytest.mark.parametrize(
    "text",
    ["kind: ConfigMap", "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition", "[1", ""],
)
def test_a_file_with_something_else_is_refused_before_the_cluster_is_asked(tmp_path: Path, text: str) -> None:
    (tmp_path / "wrong.yaml").write_text(text)
    done = _kopt(tmp_path / "none", "apply", "-f", tmp_path / "wrong.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    assert "wrong.yaml" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_definition_of_somebody_else_by_our_name_is_refused(installed: ControlPlane, tmp_path: Path) -> None:
    api, name = installed.api, "evictions.kaiwo.ai"
    path = tmp_path / "evictions.yaml"
    path.write_text((CHART / "crds" / "evictions.yaml").read_text())
    api.patch(*DEFINITION, name, {"metadata": {"labels": {"app.kubernetes.io/part-of": "theirs"}}}, "")
    refused = _kopt(installed.kubeconfig, "apply", "-f", path)
    assert refused.returncode == 1
    assert "it is not ours" in refused.stderr
    assert _kopt(installed.kubeconfig, "apply", "-f", path, "--force-conflicts").returncode == 0
