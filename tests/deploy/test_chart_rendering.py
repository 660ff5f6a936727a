"""What the chart renders to: every platform's values, refused values, and agreement with the code it starts."""

import base64
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from kopt.cli.main import app
from kopt.cluster.client.resources import KUEUE_CLUSTER_QUEUES, KUEUE_LOCAL_QUEUES, OURS, Resource
from kopt.cluster.objects.custom.feature_rollout import switches_of
from kopt.cluster.workloads.kinds import WORKLOAD_KINDS
from kopt.cluster.workloads.requests.external import ELSEWHERE
from kopt.controllers.admission.policy import Rollout, parse_policy
from kopt.controllers.admission.registration import CONFIGURATION_NAME
from kopt.controllers.admission.state import KAI_QUEUES, VOLCANO_QUEUES
from kopt.controllers.extender.binding.request import fence
from kopt.controllers.extender.configuration import scheduler_configuration
from kopt.controllers.extender.leadership import LEADER_LABEL, LEASE
from kopt.controllers.specs import CONTROLLERS
from kopt.core.switches import FEATURES

ROOT = Path(__file__).resolve().parents[2]
VALUES = ROOT / "deploy" / "values"
NAMESPACE = "kopt-system"
Object = dict[str, Any]
WEEKLY = {"name": "demand", "predictor": "demand", "schedule": "@weekly"}


def named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def pod_templates(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Every pod template, with whose it is."""
    for one in objects:
        spec, name = one.get("spec", {}), f"{one['kind']}/{one['metadata']['name']}"
        if one["kind"] == "Deployment":
            yield name, spec["template"]
        if one["kind"] == "CronJob":
            yield name, spec["jobTemplate"]["spec"]["template"]
        if one["kind"] == "RayService":
            cluster = spec["rayClusterConfig"]
            for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
                yield f"{name}/{group.get('groupName', 'head')}", group["template"]


@pytest.mark.parametrize("platform", sorted(path.stem for path in VALUES.glob("*.yaml")))
def test_the_values_of_every_platform_render(charts: Any, platform: str) -> None:
    objects = charts.render(files=[VALUES / f"{platform}.yaml"])
    assert {"kopt-webhook", "kopt-extender"} <= {
        one["metadata"]["name"] for one in objects if one["kind"] == "Deployment"
    }
    done = charts.run("lint", ROOT / "deploy" / "chart", "--strict", "--values", VALUES / f"{platform}.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mode": "on"}, "mode"),
        ({"features": {"queues": 101}}, "101"),
        ({"webhook": {"replicas": 0}}, "webhook/replicas"),
        ({"workloadClasses": {"classes": {"batch": {}}}}, "workloadClasses/classes"),
        ({"workloadClasses": {"rules": [{"class": "inference"}]}}, "workloadClasses/rules/0"),
        ({"webhok": {"enabled": False}}, "webhok"),
        ({"images": {"digests": {"controllers": "latest"}}}, "images/digests/controllers"),
        ({"predictions": {"url": "kopt:8700"}}, "predictions/url"),
        ({"predictions": {"deploy": True}}, "needs predictions.mlflowUri"),
        (
            {"predictions": {"deploy": True, "mlflowUri": "http://mlflow.mlops:5000"}},
            "predictions.workers is 2, and each would follow a part of the jobs only",
        ),
        ({"predictions": {"database": {"url": "postgresql://me:hunter2@db/kopt"}}}, "predictions/database"),
        ({"scheduler": {"deploy": True}, "extender": {"enabled": False}}, "needs extender.enabled"),
        ({"training": {"jobs": [WEEKLY]}}, "need predictions.mlflowUri"),
        (
            {"training": {"jobs": [WEEKLY]}, "predictions": {"mlflowUri": "http://mlflow.mlops:5000"}},
            "need training.signingSecret",
        ),
        (
            {
                "training": {"jobs": [WEEKLY, WEEKLY | {"schedule": "@daily"}], "signingSecret": "kopt-signing"},
                "predictions": {"mlflowUri": "http://mlflow.mlops:5000"},
            },
            "two jobs of the name demand",
        ),
        ({"networkPolicy": {"apiServer": {"cidrs": ["10.0.0.1"]}}}, "networkPolicy/apiServer/cidrs/0"),
        ({"policy": {"spec": {"mode": "enforce"}}}, "policy/spec"),
        ({"policy": {"spec": {"schedulers": {"gang": {"scheduler": "kai-scheduler"}}}}}, "running"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(charts: Any, values: Object, message: str) -> None:
    done = charts.run("template", "kopt", ROOT / "deploy" / "chart", "--namespace", NAMESPACE, values=values)
    assert done.returncode != 0
    assert message in done.stderr


def test_every_value_stands_in_the_schema_and_every_object_carries_our_labels(charts: Any, everything: Object) -> None:
    schema = json.loads((ROOT / "deploy" / "chart" / "values.schema.json").read_text())
    values = yaml.safe_load((ROOT / "deploy" / "chart" / "values.yaml").read_text())
    earlier = {alias for spec in CONTROLLERS for alias in spec.aliases}
    assert set(values) == set(schema["properties"]) - {"global"} - earlier
    key, value = OURS.split("=")
    for one in charts.render(everything):
        assert one["metadata"].get("labels", {}).get(key) == value, one["metadata"]["name"]
    for name, template in pod_templates(charts.render(everything)):
        assert template["metadata"]["labels"][key] == value, name


def test_every_pod_asks_for_resources_and_keeps_to_the_restricted_standard(charts: Any, everything: Object) -> None:
    seen = 0
    for name, template in pod_templates(charts.render(everything)):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert "hostNetwork" not in spec
        for container in spec["containers"]:
            seen += 1
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), name
            assert "memory" in container["resources"]["limits"], name
    assert seen == 9


def test_a_token_is_mounted_only_where_the_api_server_is_asked(charts: Any, everything: Object) -> None:
    everything["predictions"]["auth"] = "none"
    objects = charts.render(everything)
    for one in objects:
        if one["kind"] == "ServiceAccount":
            assert one["automountServiceAccountToken"] is False
    without = [name for name, one in pod_templates(objects) if not one["spec"]["automountServiceAccountToken"]]
    assert without == [
        "CronJob/kopt-training-demand",
        "CronJob/kopt-training-checkpoint",
        "RayService/kopt-predictions/head",
        "RayService/kopt-predictions/serve",
    ]
    assert not [one for one in objects if one["kind"] == "ClusterRole" and "predictions" in one["metadata"]["name"]]


def test_no_rule_is_for_everything(charts: Any, everything: Object) -> None:
    for one in charts.render(everything):
        for rule in one.get("rules", []):
            for field in ("apiGroups", "resources", "verbs"):
                assert "*" not in rule.get(field, []), one["metadata"]["name"]
            assert "secrets" not in rule.get("resources", []) or one["kind"] == "Role"


def test_switched_off_a_component_leaves_nothing(charts: Any) -> None:
    off = {name: {"enabled": False} for name in ("webhook", "extender", "sizing", "switchOff", "networkPolicy")}
    assert charts.render(off) == []


def test_the_audit_may_read_every_kind_of_the_webhooks_table(charts: Any) -> None:
    rules = named(charts.render(), "ClusterRole", "kopt-webhook-audit")["rules"]
    granted = {(rule["apiGroups"][0], plural) for rule in rules for plural in rule["resources"]}
    elsewhere = {(one.group, one.plural) for one in ELSEWHERE}
    kinds = {(kind.resource.group, kind.resource.plural) for kind in WORKLOAD_KINDS}
    assert kinds <= granted <= kinds | elsewhere
    of_webhook = named(charts.render(), "ClusterRole", "kopt-webhook")["rules"]
    watched = {
        (rule["apiGroups"][0], plural)
        for rule in of_webhook
        for plural in rule["resources"]
        if "watch" in rule["verbs"]
    }
    assert elsewhere <= granted | watched
    assert not [
        one for one in charts.render({"webhook": {"audit": False}}) if one["metadata"]["name"].endswith("-audit")
    ]


@pytest.mark.parametrize(
    ("framework", "queues"),
    [
        ("Kueue", [KUEUE_CLUSTER_QUEUES, KUEUE_LOCAL_QUEUES]),
        ("KAI", [KAI_QUEUES]),
        ("Volcano", [VOLCANO_QUEUES]),
    ],
)
def test_the_webhook_may_read_the_queues_of_the_framework_and_of_no_other(
    charts: Any, framework: str, queues: Sequence[Resource]
) -> None:
    objects = charts.render({"policy": {"spec": {"framework": framework}}})
    rules = named(objects, "ClusterRole", "kopt-webhook")["rules"]
    found = [(rule["apiGroups"], rule["resources"]) for rule in rules if "queues" in rule["resources"][0]]
    assert found == [([queues[0].group], [each.plural for each in queues])]


def test_the_webhook_configurations_have_the_name_that_the_process_fills(charts: Any) -> None:
    objects = charts.render()
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        assert "webhooks" not in named(objects, kind, CONFIGURATION_NAME)
    rules = named(objects, "ClusterRole", "kopt-webhook")["rules"]
    for rule in rules:
        if rule["apiGroups"] == ["admissionregistration.k8s.io"]:
            assert rule["resourceNames"] == [CONFIGURATION_NAME]
            assert "create" not in rule["verbs"]


def test_mode_reaches_the_policy_and_the_extender_and_rollouts_the_switches(charts: Any) -> None:
    values = {"mode": "annotate", "features": {"queues": 50, "placement": 20}, "policy": {"spec": {"framework": "KAI"}}}
    objects = charts.render(values)
    switches = switches_of(named(objects, "FeatureRollout", "default"))
    policy = parse_policy(named(objects, "ConformancePolicy", "default"))
    assert [switches.percent(name) for name in ("queues", "placement", "sizing")] == [50, 20, 100]
    assert set(switches.defaults) == {feature.name for feature in FEATURES}
    # Here as well the smaller would count: the policy leaves it to the switches.
    assert (policy.mode, policy.rollout) == ("annotate", Rollout())
    assert policy.queues.framework == "KAI"
    (container,) = named(objects, "Deployment", "kopt-extender")["spec"]["template"]["spec"]["containers"]
    assert "--mode=annotate" in container["args"]


def test_the_extender_asks_a_prometheus_only_where_one_is_named(charts: Any) -> None:
    def rendered(**prometheus: str) -> tuple[list[str], list[Any]]:
        objects = charts.render({"extender": {"prometheus": prometheus}})
        (container,) = named(objects, "Deployment", "kopt-extender")["spec"]["template"]["spec"]["containers"]
        return container["args"], named(objects, "NetworkPolicy", "kopt-extender")["spec"]["egress"]

    args, egress = rendered(url="https://metrics.example.com", tokenSecret="token", caSecret="ca")
    assert "--prometheus=https://metrics.example.com" in args
    assert "--token-file=/etc/kopt/prometheus/token" in args
    assert "--certificate-authority=/etc/kopt/prometheus-ca/ca.crt" in args
    before_args, before_egress = rendered()
    assert not [arg for arg in before_args if "prometheus" in arg]
    assert [rule for rule in egress if rule not in before_egress][-1] == {"ports": [{"port": 443}]}


def test_the_scheduler_packs_and_asks_the_extender_as_it_wants_to_be_asked(charts: Any) -> None:
    objects = charts.render({"scheduler": {"name": "gpu-packing", "managedResources": ["amd.com/gpu"]}})
    found = yaml.safe_load(named(objects, "ConfigMap", "kopt-scheduler")["data"]["scheduler.yaml"])
    caller = {"caFile": "ca.crt", "certFile": "tls.crt", "keyFile": "tls.key"}
    mounted = {name: f"/etc/kopt/caller/{file}" for name, file in caller.items()}
    wanted = scheduler_configuration(f"https://kopt-extender.{NAMESPACE}.svc:443", "gpu-packing", tls=mounted)
    (entry,) = found["extenders"]
    assert entry.pop("managedResources") == [{"name": "amd.com/gpu", "ignoredByScheduler": False}]
    assert entry == wanted["extenders"][0]
    (profile,) = found["profiles"]
    assert wanted["profiles"][0].items() <= profile.items()
    (fit,) = profile["pluginConfig"]
    assert fit["args"]["scoringStrategy"]["type"] == "MostAllocated"
    assert {one["name"] for one in fit["args"]["scoringStrategy"]["resources"]} >= {"nvidia.com/gpu", "amd.com/gpu"}


def test_who_calls_the_extender_shows_a_certificate_that_it_knows(charts: Any) -> None:
    objects = charts.render({"scheduler": {"deploy": True}})

    def pem(secret: str, name: str) -> bytes:
        return base64.b64decode(named(objects, "Secret", secret)["data"][name])

    for secret, use in (("kopt-extender-tls", "SERVER_AUTH"), ("kopt-extender-caller", "CLIENT_AUTH")):
        certificate = x509.load_pem_x509_certificate(pem(secret, "tls.crt"))
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(pem("kopt-extender-tls", "ca.crt")))
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert getattr(ExtendedKeyUsageOID, use) in uses
    assert pem("kopt-extender-tls", "ca.crt") == pem("kopt-extender-caller", "ca.crt")
    names = x509.load_pem_x509_certificate(pem("kopt-extender-tls", "tls.crt")).extensions
    named_hosts = names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    assert named_hosts == [f"kopt-extender.{NAMESPACE}.svc"]
    for deployment, secret in (("kopt-extender", "kopt-extender-tls"), ("kopt-scheduler", "kopt-extender-caller")):
        volumes = named(objects, "Deployment", deployment)["spec"]["template"]["spec"]["volumes"]
        assert secret in [one.get("secret", {}).get("secretName") for one in volumes]


def test_secrets_of_your_own_are_used_and_plain_calls_have_to_be_asked_for(charts: Any) -> None:
    own = {"serverSecret": "mine", "clientSecret": "theirs"}
    objects = charts.render({"extender": {"tls": own}, "scheduler": {"deploy": True}})
    assert not [one for one in objects if one["kind"] == "Secret"]
    text = str(objects)
    assert "'secretName': 'mine'" in text and "'secretName': 'theirs'" in text  # noqa: PT018
    objects = charts.render({"extender": {"tls": {"enabled": False}}, "scheduler": {"deploy": True}})
    assert not [one for one in objects if one["kind"] == "Secret"]
    assert "--tls" not in str(objects)
    found = yaml.safe_load(named(objects, "ConfigMap", "kopt-scheduler")["data"]["scheduler.yaml"])
    plain = scheduler_configuration(f"http://kopt-extender.{NAMESPACE}.svc:80")
    assert found["extenders"] == plain["extenders"]


def test_the_service_leads_to_the_replica_that_leads_and_an_update_waits_for_new_ones(charts: Any) -> None:
    objects = charts.render()
    assert named(objects, "Service", "kopt-extender")["spec"]["selector"][LEADER_LABEL] == "true"
    template = named(objects, "Deployment", "kopt-extender")["spec"]
    assert template["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert named(objects, "PodDisruptionBudget", "kopt-extender")["spec"]["maxUnavailable"] == 1
    planned = charts.render({"extender": {"joint": 50}})
    assert "--joint=50" in str(named(planned, "Deployment", "kopt-extender"))
    found = yaml.safe_load(named(planned, "ConfigMap", "kopt-scheduler")["data"]["scheduler.yaml"])
    assert found["profiles"][0]["percentageOfNodesToScore"] == 100
    offered = charts.render({"scheduler": {"percentageOfNodesToScore": 40}})
    found = yaml.safe_load(named(offered, "ConfigMap", "kopt-scheduler")["data"]["scheduler.yaml"])
    assert found["profiles"][0]["percentageOfNodesToScore"] == 40


def test_the_fence_is_the_one_that_the_extender_prints(charts: Any) -> None:
    objects = charts.render()
    for wanted in fence(NAMESPACE, LEASE):
        found = named(objects, wanted["kind"], wanted["metadata"]["name"])
        assert found["spec"] == wanted["spec"]


def test_every_argument_is_an_option_of_the_command(charts: Any, everything: Object) -> None:
    import typer.main

    group: Any = typer.main.get_command(app)
    seen = set()
    for _, template in pod_templates(charts.render(everything)):
        for container in template["spec"]["containers"]:
            verb, *arguments = container.get("args", [""])
            if verb in ("webhook", "extender", "off", "train"):
                known = {text for one in group.commands[verb].params for text in (*one.opts, *one.secondary_opts)}
                assert {one.partition("=")[0] for one in arguments if one.startswith("--")} <= known
                seen.add(verb)
    assert seen == {"webhook", "extender", "off", "train"}


@pytest.mark.parametrize(
    ("listen", "webhook"),
    [
        ("0.0.0.0", "0.0.0.0:9443"),
        ("::", "[::]:9443"),
        ("$(POD_IP)", "$(POD_IP):9443"),
    ],
)
def test_servers_listen_where_the_cluster_has_addresses(
    charts: Any, everything: Object, listen: str, webhook: str
) -> None:
    everything["pods"] = {"listen": listen}
    templates = dict(pod_templates(charts.render(everything)))
    arguments = {name: one["spec"]["containers"][0].get("args", []) for name, one in templates.items()}
    assert f"--listen={webhook}" in arguments["Deployment/kopt-webhook"]
    assert f"--host={listen}" in arguments["Deployment/kopt-extender"]
    assert f"--bind-address={listen}" in arguments["Deployment/kopt-scheduler"]
    for name in ("webhook", "extender", "scheduler", "sizing"):
        env = templates[f"Deployment/kopt-{name}"]["spec"]["containers"][0]["env"]
        assert "POD_IP" in {one["name"] for one in env}


def test_traffic_is_refused_but_for_the_flows_that_are_needed(charts: Any, everything: Object) -> None:
    policies = [one for one in charts.render(everything) if one["kind"] == "NetworkPolicy"]
    deny = named(policies, "NetworkPolicy", "kopt-default-deny")["spec"]
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & deny.keys()
    extender = named(policies, "NetworkPolicy", "kopt-extender")["spec"]
    calls, looks = extender["ingress"]
    assert calls["ports"] == [{"port": 9445}]
    assert [list(one) for one in calls["from"]] == [["podSelector"], ["ipBlock"]]
    assert looks["ports"] == [{"port": 9444}]
    components = {one["spec"]["podSelector"]["matchLabels"].get("app.kubernetes.io/component") for one in policies}
    assert components == {None, "webhook", "extender", "sizing", "scheduler", "predictions", "off", "training"}


def test_predictions_are_asked_for_where_they_are(charts: Any, everything: Object) -> None:
    def sizing(values: Object) -> list[str]:
        template = named(charts.render(values), "Deployment", "kopt-webhook")["spec"]["template"]
        return [one for one in template["spec"]["containers"][0]["args"] if one.startswith("--sizing")]

    assert sizing({}) == []
    assert sizing({"predictions": {"url": "http://kopt.example.com:8700"}}) == ["--sizing=http://kopt.example.com:8700"]
    assert sizing(everything) == ["--sizing=http://kopt-predictions-serve-svc.kopt-system.svc:8000"]
    policy = named(charts.render({"predictions": {"url": "https://kopt.example.com"}}), "NetworkPolicy", "kopt-webhook")
    assert {"ports": [{"port": 443}]} in policy["spec"]["egress"]


def test_the_webhook_has_a_token_for_predictions_and_for_nothing_else(charts: Any, everything: Object) -> None:
    from kopt.serving.client.tokens import MOUNTED

    def tokens(values: Object) -> list[Object]:
        spec = named(charts.render(values), "Deployment", "kopt-webhook")["spec"]["template"]["spec"]
        (mount,) = [one["mountPath"] for one in spec["containers"][0]["volumeMounts"] if "token" in one["name"]] or [""]
        sources = [source for one in spec["volumes"] for source in one.get("projected", {}).get("sources", [])]
        return [
            one["serviceAccountToken"] | {"path": f"{mount}/{one['serviceAccountToken']['path']}"} for one in sources
        ]

    assert tokens({}) == []
    assert tokens({"predictions": {"url": "http://kopt.example.com:8700", "auth": "none"}}) == []
    (token,) = tokens(everything)
    assert token["path"] == str(MOUNTED)
    service = named(charts.render(everything), "RayService", "kopt-predictions")["spec"]["rayClusterConfig"]
    for group in (service["headGroupSpec"], *service["workerGroupSpecs"]):
        environment = {one["name"]: one.get("value") for one in group["template"]["spec"]["containers"][0]["env"]}
        assert environment["KOPT_AUTH_AUDIENCES"] == token["audience"]


def test_how_soon_demand_counts_as_unusual_reaches_every_replica(charts: Any, everything: Object) -> None:
    values = {**everything, "predictions": {**everything["predictions"], "anomalies": {"falseAlarmsPerWeek": 1}}}
    service = named(charts.render(values), "RayService", "kopt-predictions")["spec"]["rayClusterConfig"]
    for group in (service["headGroupSpec"], *service["workerGroupSpecs"]):
        environment = {one["name"]: one.get("value") for one in group["template"]["spec"]["containers"][0]["env"]}
        assert environment["KOPT_ANOMALY_FALSE_ALARMS"] == "1"


def test_replicas_of_the_endpoint_share_what_they_keep(charts: Any, everything: Object) -> None:
    objects = charts.render(everything)
    cluster = named(objects, "RayService", "kopt-predictions")["spec"]["rayClusterConfig"]
    reference = {"secretKeyRef": {"name": "kopt-database", "key": "url"}}
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        environment = {one["name"]: one for one in group["template"]["spec"]["containers"][0]["env"]}
        assert environment["KOPT_DATABASE_URL"] == {"name": "KOPT_DATABASE_URL", "valueFrom": reference}
    assert cluster["gcsFaultToleranceOptions"] == {
        "redisAddress": "redis.mlops:6380",
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "kopt-redis", "key": "password"}}},
    }
    egress = named(objects, "NetworkPolicy", "kopt-predictions")["spec"]["egress"]
    ports = {port["port"] for rule in egress for port in rule.get("ports", [])}
    assert {5000, 5432, 6379, 6380} <= ports


def test_credentials_of_the_endpoint_come_from_a_secret(charts: Any, everything: Object) -> None:
    values = everything | {"predictions": everything["predictions"] | {"envSecret": "kopt-registry"}}
    cluster = named(charts.render(values), "RayService", "kopt-predictions")["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": "kopt-registry"}}]


def test_serve_reads_the_applications_configuration(charts: Any, everything: Object, kopt_home: Path) -> None:
    from ray.serve.schema import ServeDeploySchema

    from kopt.serving.endpoint import deploy

    service = named(charts.render(everything), "RayService", "kopt-predictions")
    parsed = ServeDeploySchema.model_validate(yaml.safe_load(service["spec"]["serveConfigV2"]))
    (application,) = parsed.applications
    module, _, attribute = application.import_path.partition(":")
    assert module == deploy.__name__
    assert callable(getattr(deploy, attribute))
    assert [one.name for one in application.deployments] == [deploy.DEPLOYMENT]
    assert application.deployments[0].num_replicas == 2
    built = getattr(deploy, attribute)(application.args)
    assert built._bound_deployment.name == deploy.DEPLOYMENT
    assert built._bound_deployment.num_replicas == 2


def test_ray_pods_keep_the_labels_by_which_kuberay_finds_them(charts: Any, everything: Object) -> None:
    """``kopt-predictions-head-svc`` selects by what KubeRay writes (HeadServiceLabels): leave them be."""
    service = named(charts.render(everything), "RayService", "kopt-predictions")
    groups = service["spec"]["rayClusterConfig"]
    for group in (groups["headGroupSpec"], *groups["workerGroupSpecs"]):
        labels = group["template"]["metadata"]["labels"]
        assert not {"app.kubernetes.io/name", "app.kubernetes.io/created-by"} & set(labels)
        assert not [name for name in labels if name.startswith("ray.io/")]
        assert labels["app.kubernetes.io/component"] == "predictions"


def test_the_guide_names_values_and_files_that_exist() -> None:
    text = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    values = yaml.safe_load((ROOT / "deploy" / "chart" / "values.yaml").read_text())
    sections = "|".join(values)
    named = set(re.findall(rf"(?<![/\w.-])((?:{sections})(?:\.[a-zA-Z]+)+)\b", text))
    # A kind of ours may have the name of a section.
    named = {path for path in named if not path.endswith(".kaiwo.ai")}
    assert len(named) > 10
    for path in named:
        place: Any = values
        for step in path.split("."):
            assert step in place, path
            place = place[step]
    for path in re.findall(r"\bdeploy/[\w./-]+\w", text):
        assert path == "deploy/kopt-webhook" or (ROOT / path).exists(), path


def test_reviews_come_from_no_pod_and_from_certified_callers_where_the_values_say_so(charts: Any) -> None:
    api_server = {"podCidrs": ["10.244.0.0/16", "fd00:1::/64"]}
    values = {"preemption": {"enabled": True}, "webhook": {"clientCaSecret": "callers"}}
    objects = charts.render(values | {"networkPolicy": {"apiServer": api_server}})
    open_ranges = [
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.244.0.0/16"]}},
        {"ipBlock": {"cidr": "::/0", "except": ["fd00:1::/64"]}},
    ]
    assert reviewed_from(objects) == {"kopt-webhook": open_ranges, "kopt-preemption": open_ranges}
    for name, template in pod_templates(objects):
        if name in ("Deployment/kopt-webhook", "Deployment/kopt-preemption"):
            (container,) = template["spec"]["containers"]
            assert "--client-ca=/etc/kopt/callers/ca.crt" in container["args"], name
            secrets = [one["secret"]["secretName"] for one in template["spec"]["volumes"] if one["name"] == "callers"]
            assert secrets == ["callers"], name
    # What is narrow already has no pods in it, and the API server refuses an exception outside of its range.
    narrow = charts.render({"networkPolicy": {"apiServer": api_server | {"reviewCidrs": ["10.0.0.0/28"]}}})
    assert reviewed_from(narrow) == {"kopt-webhook": [{"ipBlock": {"cidr": "10.0.0.0/28"}}]}


def reviewed_from(objects: list[Object]) -> Object:
    """Who may send reviews, by network policy."""
    return {
        one["metadata"]["name"]: rule["from"]
        for one in objects
        if one["kind"] == "NetworkPolicy"
        for rule in one["spec"].get("ingress", [])
        if {"port": 9443} in rule["ports"] or {"port": 9453} in rule["ports"]
    }


def learning(predictor: str, **predictions: Any) -> Object:
    """Values with one training job that learns from its cluster."""
    job = {**WEEKLY, "name": predictor, "predictor": predictor, "arguments": ["--from-cluster"]}
    return {
        "predictions": {"mlflowUri": "http://mlflow.mlops:5000", **predictions},
        "training": {"jobs": [job], "signingSecret": "kopt-signing"},
    }


@pytest.mark.parametrize("predictor", ["sizing", "bandwidth"])
def test_a_training_that_learns_from_objects_may_list_them_and_nothing_else(charts: Any, predictor: str) -> None:
    objects = charts.render(learning(predictor))
    pod = named(objects, "CronJob", f"kopt-training-{predictor}")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"]
    (rule,) = named(objects, "ClusterRole", "kopt-training")["rules"]
    assert (rule["apiGroups"], rule["verbs"]) == (["kaiwo.ai"], ["list"])
    ports = [rule.get("ports") for rule in named(objects, "NetworkPolicy", "kopt-training")["spec"]["egress"]]
    assert [{"port": 443}, {"port": 6443}] in ports


@pytest.mark.parametrize("predictor", ["checkpoint", "runtime"])
def test_a_training_that_learns_from_the_endpoint_reads_its_database(charts: Any, predictor: str) -> None:
    with pytest.raises(AssertionError, match=r"predictions\.database\.secret"):
        charts.render(learning(predictor))
    objects = charts.render(learning(predictor, database={"secret": "kopt-database", "port": 6432}))
    pod = named(objects, "CronJob", f"kopt-training-{predictor}")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert not pod["automountServiceAccountToken"]
    (variable,) = [entry for entry in pod["containers"][0]["env"] if entry["name"] == "KOPT_DATABASE_URL"]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "kopt-database", "key": "url"}
    assert [{"port": 6432}] in [
        rule.get("ports") for rule in named(objects, "NetworkPolicy", "kopt-training")["spec"]["egress"]
    ]
    assert not [
        item for item in objects if (item["kind"], item["metadata"]["name"]) == ("ClusterRole", "kopt-training")
    ]
