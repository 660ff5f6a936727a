"""What users set of every component: where it runs, as whom, who scrapes it; and the values to look at all of it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from chart import CHART, NAMESPACE, ROOT, Helm, Object

from kopt.core.scheduling.workload_class import default_classes
from tests.deploy.conftest import EVERYTHING

COMPONENTS = (
    *(
        "webhook",
        "extender",
        "scheduler",
        "sizing",
        "logtail",
        "topology",
        "telemetry",
        "nodeExecutor",
        "pairwise",
        "preemption",
        "staging",
    ),
    *(
        "evictions",
        "lending",
        "ingest",
        "queues",
        "runs",
        "gangs",
        "reservations",
        "partitions",
        "meter",
        "health",
        "rightsizing",
        "autoscaling",
        "pages",
        "predictions",
        "training",
        "switchOff",
        "crds",
    ),
)
EARLIER = {
    "ledger": "evictions",
    "pairs": "pairwise",
    "reallocation": "lending",
    "off": "switchOff",
    "node-executor": "nodeExecutor",
}
"""Components whose label is not their key in the values."""


def key_of(item: Object) -> str:
    component = str(item["metadata"]["labels"]["app.kubernetes.io/component"])
    return EARLIER.get(component, component)


def pod_templates(objects: list[Object]) -> Iterator[Object]:
    for item in objects:
        spec = item.get("spec", {})
        if item["kind"] in ("Deployment", "DaemonSet", "Job"):
            yield spec["template"]
        elif item["kind"] == "CronJob":
            yield spec["jobTemplate"]["spec"]["template"]
        elif item["kind"] == "RayService":
            groups = spec["rayClusterConfig"]
            yield from (group["template"] for group in (groups["headGroupSpec"], *groups["workerGroupSpecs"]))


def own(component: str) -> Object:
    """Settings that name their component."""
    terms = [{"matchExpressions": [{"key": component, "operator": "Exists"}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    return {
        "affinity": affinity,
        "priorityClassName": component.lower(),
        "nodeSelector": {"for": component},
        "tolerations": [{"key": component, "operator": "Exists"}],
        "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": component},
    }


@pytest.fixture(scope="module")
def objects(charts: Helm) -> list[Object]:
    """All components at once, each with settings of its own, and their monitors."""
    values: Object = json.loads(json.dumps(EVERYTHING))
    for component in COMPONENTS:
        switches = {
            "predictions": {},
            "training": {},
            "scheduler": {},
            "crds": {"upgrade": True},
            "nodeExecutor": {"enabled": True, "keysConfigMap": "keys"},
        }.get(component, {"enabled": True})
        values[component] = values.get(component, {}) | own(component) | switches
    values["monitoring"] = {"enabled": True, "labels": {"release": "prometheus"}, "interval": "15s"}
    values["pods"] = {"affinity": {"podAffinity": {}}, "priorityClassName": "common", "tolerations": [{"key": "all"}]}
    return charts.render(values)


def test_every_pod_runs_where_and_before_whom_its_component_says(objects: list[Object]) -> None:
    templates = list(pod_templates(objects))
    assert {key_of(template) for template in templates} == set(COMPONENTS)
    for template in templates:
        spec, settings = template["spec"], own(key_of(template))
        assert spec["affinity"] == settings["affinity"], key_of(template)
        assert spec["priorityClassName"] == settings["priorityClassName"]
        assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"} | settings["nodeSelector"]
        assert spec["tolerations"] == [{"key": "all"}, *settings["tolerations"]]


def test_every_account_has_the_annotations_of_its_component(objects: list[Object]) -> None:
    accounts = [item for item in objects if item["kind"] == "ServiceAccount"]
    assert {key_of(account) for account in accounts} == {*COMPONENTS, "pages"}
    for account in accounts:
        hooks = {"helm.sh/hook", "helm.sh/hook-weight", "helm.sh/hook-delete-policy"}
        annotations = {name: text for name, text in account["metadata"]["annotations"].items() if name not in hooks}
        assert annotations == {"eks.amazonaws.com/role-arn": key_of(account)}


def test_whoever_may_be_scraped_has_one_monitor_that_finds_its_port(objects: list[Object]) -> None:
    monitors = [item for item in objects if item["kind"] in ("PodMonitor", "ServiceMonitor")]
    scraped = {}
    for monitor in monitors:
        pods, spec = monitor["kind"] == "PodMonitor", monitor["spec"]
        endpoint, *more = spec["podMetricsEndpoints" if pods else "endpoints"]
        assert all(each["port"] == endpoint["port"] for each in more)
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert endpoint["interval"] == "15s"
        if not pods:
            (service,) = [item for item in objects if item["kind"] == "Service" and _selects(monitor, item)]
            (target,) = [port["targetPort"] for port in service["spec"]["ports"] if port["name"] == endpoint["port"]]
        labels = {name: value for name, value in _labels(monitor).items() if name != "ray.io/node-type"}
        (template, *_) = [
            item for item in pod_templates(objects) if labels.items() <= item["metadata"]["labels"].items()
        ]
        name = endpoint["port"] if pods else target
        (port,) = [port for port in template["spec"]["containers"][0]["ports"] if port["name"] == name]
        scraped[key_of(monitor), spec["namespaceSelector"]["matchNames"][0]] = port["containerPort"]
    assert len(monitors) == len(scraped)
    monitoring = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
        "podSelector": {},
    }
    let_in = {
        (key_of(policy), policy["metadata"]["namespace"]): rule["ports"][0]["port"]
        for policy in objects
        if policy["kind"] == "NetworkPolicy"
        for rule in policy["spec"].get("ingress") or []
        if monitoring in rule.get("from", [])
    }
    assert scraped == let_in
    assert len(scraped) == len(COMPONENTS) - len({"training", "switchOff", "crds"})


def _labels(monitor: Object) -> dict[str, str]:
    return dict(monitor["spec"]["selector"]["matchLabels"])


def _selects(monitor: Object, item: Object) -> bool:
    return bool(_labels(monitor).items() <= item["metadata"]["labels"].items())


def test_the_table_of_classes_reaches_every_component_that_goes_by_it(charts: Helm) -> None:
    table = {
        "classes": {"inference": {"placement": "pack", "idle_s": 600}},
        "rules": [{"class": "interactive", "images": ["our-desk"]}],
    }
    rendered = charts.render({**EVERYTHING, "preemption": {"enabled": True}, "workloadClasses": table})
    found = {}
    for item in rendered:
        if item["kind"] == "Deployment":
            (container, *_) = item["spec"]["template"]["spec"]["containers"]
            values = {each["name"]: each.get("value") for each in container.get("env", ())}
            found[key_of(item)] = values.get("KOPT_WORKLOAD_CLASSES")
    for component in ("webhook", "extender", "preemption"):
        assert json.loads(found[component] or "") == table
        assert default_classes().overridden(json.loads(found[component] or ""))


def test_without_a_registry_nothing_is_rendered_and_the_value_is_named(charts: Helm) -> None:
    done = charts.run("template", "kopt", CHART, values={"images": {"registry": ""}})
    assert (done.returncode, done.stdout) == (1, "")
    assert "images.registry is not set" in done.stderr


def test_the_values_for_an_evaluation_start_everything_and_change_nothing(charts: Helm) -> None:
    path = ROOT / "deploy" / "values" / "evaluation.yaml"
    objects = charts.render(files=[path])
    assert {key_of(item) for item in pod_templates(objects)} == {*COMPONENTS} - {
        "training",
        "autoscaling",
        "telemetry",
        "nodeExecutor",
        # Tests have no node for it unless they say so.
        "crds",
    }
    assert [item for item in objects if item["metadata"]["name"] == "kopt-pages" and item["kind"] == "ServiceAccount"]
    (policy,) = [item for item in objects if item["kind"] == "ConformancePolicy"]
    assert policy["spec"]["mode"] == "observe"
    arguments = [text for item in pod_templates(objects) for text in item["spec"]["containers"][0].get("args", [])]
    assert {text for text in arguments if text.startswith("--mode=")} == {"--mode=observe"}
    everything = yaml.safe_load(path.read_text())
    assert everything["mode"] == "observe"


def _notes(charts: Helm, *options: Any, values: Object | None = None) -> str:
    done = charts.run("install", "kopt", CHART, "--dry-run=client", "--namespace", NAMESPACE, *options, values=values)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


def test_the_notes_say_what_is_there_what_is_missing_and_what_comes_next(charts: Helm) -> None:
    plain = _notes(charts)
    assert "Installed: webhook, extender, sizing.\n" in plain
    assert "each switched on by a value: logtail.enabled, " in plain
    assert "set predictions.url or predictions.deploy" in plain
    assert "kubectl label namespace NAMESPACE kaiwo.ai/managed=true" in plain
    assert "--set mode=annotate" in plain
    assert "create job off --from=cronjob/kopt-off" in plain
    full = _notes(charts, "--values", ROOT / "deploy" / "values" / "evaluation.yaml", values={"mode": "annotate"})
    assert (
        "predictions.\nNot installed, each switched on by a value: telemetry.enabled, nodeExecutor.enabled, "
        "autoscaling.enabled.\n" in full
    )
    assert "only the shipped models are served" in full
    assert "--set mode=annotate" not in full
    assert "Kueue" in full
