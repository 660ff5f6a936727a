"""Every entry of the list of controllers has what a controller needs: a command, objects of the chart, a way off."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from kopt.cli.main import app
from kopt.cluster.client.resources import COMPONENT_LABEL, OURS
from kopt.cluster.holds.hold import HELD_KINDS
from kopt.cluster.teardown.components import KEPT_COMPONENTS
from kopt.controllers.specs import CONTROLLERS, ControllerSpec, held_kinds

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "contributing" / "controller.md"
NAMESPACE = "kopt-system"
Object = dict[str, Any]
HEAVY = {"ray", "mlflow", "feast", "torch", "lightgbm", "sklearn", "pandas"}
EVERY_CONTROLLER = {spec.name: {"enabled": True} for spec in CONTROLLERS} | {
    "predictions": {"url": "http://kopt.example.com:8700"},
    "preemption": {"enabled": True, "plainPods": True, "kai": True},
    "partitions": {"enabled": True, "drain": {"enabled": True}, "sharing": {"enabled": True}},
    "meter": {"enabled": True, "prometheus": {"url": "http://prometheus.example.com:9090"}},
}
SHARED_KINDS = {"events.events.k8s.io", "leases.coordination.k8s.io"}
WRITING = {"create", "update", "patch", "delete"}

each = pytest.mark.parametrize("spec", [pytest.param(spec, id=spec.name) for spec in CONTROLLERS])


@pytest.fixture(scope="session")
def rendered(charts: Any) -> list[Object]:
    """The chart with every controller."""
    objects: list[Object] = charts.render(EVERY_CONTROLLER)
    return objects


def of(objects: list[Object], kind: str, name: str) -> Object:
    (result,) = [
        document
        for document in objects
        if (document["kind"], document["metadata"]["name"]) == (kind, name)
        and document["metadata"].get("namespace", NAMESPACE) == NAMESPACE
    ]
    return result


def command_of(spec: ControllerSpec) -> Any:
    command: Any = typer.main.get_command(app)
    for name in spec.command:
        command = command.commands[name]
    return command


def granted(objects: list[Object], account: str) -> dict[str, set[str]]:
    """The verbs that roles give the account, by kind as kubectl names it."""
    roles = {
        (document["kind"], document["metadata"].get("namespace"), document["metadata"]["name"]): document
        for document in objects
        if document["kind"] in ("Role", "ClusterRole")
    }
    result: dict[str, set[str]] = {}
    for document in objects:
        if any(subject.get("name") == account for subject in document.get("subjects", ())):
            reference = document["roleRef"]
            space = document["metadata"].get("namespace") if reference["kind"] == "Role" else None
            # Of Kubernetes' own: how it knows the API server.
            if reference["name"] == "extension-apiserver-authentication-reader":
                continue
            for rule in roles[reference["kind"], space, reference["name"]]["rules"]:
                for group in rule.get("apiGroups", ()):
                    for resource in rule["resources"]:
                        kind = ".".join(filter(None, (resource.partition("/")[0], group)))
                        result.setdefault(kind, set()).update(rule["verbs"])
    return result


def test_names_ports_and_objects_are_unique() -> None:
    names = [name for spec in CONTROLLERS for name in (spec.name, *spec.aliases)]
    assert len(names) == len(set(names))
    ports = [port for spec in CONTROLLERS for port in spec.ports]
    assert len(ports) == len(set(ports))
    assert len({spec.objects for spec in CONTROLLERS}) == len(CONTROLLERS)
    folders = {path.parent.name for path in (ROOT / "controllers").glob("*/main.py")}
    assert {spec.module.split(".")[2] for spec in CONTROLLERS} == folders, "a folder with main.py that is not listed"


@each
def test_the_command_exists_and_its_help_has_an_example(spec: ControllerSpec) -> None:
    command = command_of(spec)
    assert re.search(rf"Examples:\n\n +kopt {' '.join(spec.command)}\b", command.help), command.help
    assert not [option.name for option in command.params if not option.help]
    assert callable(importlib.import_module(spec.module).serve)


@each
def test_the_command_listens_on_the_ports_of_the_list(spec: ControllerSpec) -> None:
    defaults = {str(option.default) for option in command_of(spec).params}
    assert {str(port) for port in spec.ports} <= {text.rpartition(":")[2] for text in defaults}


@each
def test_the_chart_deploys_it_with_an_account_and_a_network_policy(
    spec: ControllerSpec, rendered: list[Object]
) -> None:
    deployment = of(rendered, "Deployment", spec.objects)
    pod = deployment["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == of(rendered, "ServiceAccount", spec.objects)["metadata"]["name"]
    policy = of(rendered, "NetworkPolicy", spec.objects)["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    (container,) = pod["containers"]
    words, arguments = container["args"][: len(spec.command)], container["args"][len(spec.command) :]
    assert tuple(words) == spec.command
    options = {text for option in command_of(spec).params for text in (*option.opts, *option.secondary_opts)}
    assert {argument.partition("=")[0] for argument in arguments} <= options
    probes = {port["name"]: port["containerPort"] for port in container["ports"]}["probes"]
    assert set(spec.ports) <= {port["containerPort"] for port in container["ports"]}
    assert {"port": probes} in [port for rule in policy["ingress"] for port in rule["ports"]]


@each
def test_its_account_may_do_what_the_list_says_and_write_nothing_else(
    spec: ControllerSpec, rendered: list[Object]
) -> None:
    rights = granted(rendered, spec.objects)
    readable = {kind for kind, verbs in rights.items() if verbs & {"get", "list", "watch"}}
    writable = {kind for kind, verbs in rights.items() if verbs & WRITING}
    assert set(spec.reads) <= readable
    assert set(spec.writes) == writable - SHARED_KINDS
    assert readable - set(spec.reads) - SHARED_KINDS == set() or spec.name == "webhook", "the webhook audits all kinds"


@each
def test_it_is_off_or_on_by_default_as_the_list_says(spec: ControllerSpec, charts: Any) -> None:
    values = yaml.safe_load((ROOT / "deploy" / "chart" / "values.yaml").read_text())
    assert values[spec.name]["enabled"] is spec.enabled_by_default
    names = {document["metadata"]["name"] for document in charts.render() if document["kind"] == "Deployment"}
    assert (spec.objects in names) is spec.enabled_by_default


@each
def test_off_stops_it(spec: ControllerSpec, rendered: list[Object]) -> None:
    labels = of(rendered, "Deployment", spec.objects)["metadata"]["labels"]
    key, value = OURS.split("=")
    assert labels[key] == value
    assert labels[COMPONENT_LABEL] == spec.component not in KEPT_COMPONENTS


def test_off_releases_every_kind_that_a_controller_holds_and_may_do_so(rendered: list[Object]) -> None:
    assert held_kinds() == {kind.full_name for kind in HELD_KINDS}
    rights = granted(rendered, "kopt-off")
    assert not [kind for kind in held_kinds() if not {"list", "patch"} <= rights.get(kind, set())]


@each
def test_importing_it_costs_no_machine_learning_package(spec: ControllerSpec) -> None:
    code = f"import {spec.module}, json, sys; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(json.loads(done.stdout))


def test_the_guide_names_the_list_and_its_steps() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for step in ("controllers/specs.py", "options.py", "main.py", "deploy/chart/templates/NAME", "values.yaml"):
        assert step in text, step
