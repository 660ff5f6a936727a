"""The webhooks in front of the real API server, from unlabelled workloads to replicas that die."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from admission.conftest import CONFIGURATION, POLICY, SYSTEM, Webhooks
from admission.submitting import KUEUE, OPT_OUT, SOURCE, labelled, person, placed
from admission.workloads import Object, deployment, every_kind, job, pod, pytorch_job
from controlplane.api import Api, Refused
from controlplane.processes import wait_for

CRDS = ("jobset", "lws", "training-operator", "trainer", "kuberay", "kserve", "kaiwo")
ALWAYS_SENT = {"TrainJob", "InferenceService", "KaiwoJob", "KaiwoService"}
"""Kinds whose GPUs are in too many places for a condition."""


def test_an_unlabelled_gpu_job_gets_the_queue_of_its_namespace(webhooks: Webhooks) -> None:
    webhooks.policy(mode="annotate", queues={"default": "rest"})
    space = webhooks.namespace({"kaiwo.ai/queue": "research"})
    webhooks.seen(space, labelled)
    made = webhooks.api.create(placed(job("train"), space))
    assert made["metadata"]["labels"][KUEUE] == "research"
    assert made["metadata"]["labels"][SOURCE] == "namespace"
    assert KUEUE not in made["spec"]["template"]["metadata"]["labels"]


def use_newer_mpi_jobs(webhooks: Webhooks) -> None:
    """The training operator's v1 away, the MPI operator's v2beta1 in its place: they share a name."""
    definition = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "mpijobs.kubeflow.org")
    webhooks.api.delete(*definition)
    wait_for(lambda: webhooks.api.find(*definition) is None)
    webhooks.plane.install_crds("mpi-operator")


def test_every_kind_is_labelled_where_its_queue_looks(webhooks: Webhooks) -> None:
    webhooks.plane.install_crds(*CRDS)
    webhooks.policy(mode="annotate", queues={"default": "rest"})
    space = webhooks.namespace()
    webhooks.seen(space, labelled)
    older = next(one for one in every_kind("older") if one["kind"] == "MPIJob") | {"apiVersion": "kubeflow.org/v1"}
    assert labelled(webhooks.api.create(placed(older, space)))
    use_newer_mpi_jobs(webhooks)
    for workload in every_kind("one"):
        made = webhooks.api.create(placed(workload, space))
        owner = made["spec"]["jobTemplate"] if made["kind"] == "CronJob" else made
        assert owner["metadata"].get("labels", {}).get(KUEUE) == "rest", made["kind"]
        webhooks.api.delete(made["apiVersion"], made["kind"], "one", space)
    sent = webhooks.replicas[0].metric("kopt_webhook_requests_total")
    for workload in every_kind("none", gpus=0):
        made = webhooks.api.create(placed(workload, space))
        assert KUEUE not in json.dumps(made["metadata"]), made["kind"]
        webhooks.api.delete(made["apiVersion"], made["kind"], "none", space)
        if workload["kind"] not in ALWAYS_SENT:
            assert webhooks.replicas[0].metric("kopt_webhook_requests_total") == sent, workload["kind"]
        sent = webhooks.replicas[0].metric("kopt_webhook_requests_total")


def test_the_group_of_the_creator_names_the_queue_and_a_refusal_names_the_missing_rule(webhooks: Webhooks) -> None:
    webhooks.policy(mode="enforce", queues={"groups": [{"name": "nlp", "queue": "research"}]})
    space = webhooks.namespace()
    ada, bob = person(webhooks, "ada", ("nlp",)), person(webhooks, "bob", ("vision",))
    made = wait_for(
        lambda: next((one for one in [ada.create(placed(job("mine"), space), dryRun="All")] if labelled(one)), None)
    )
    assert made["metadata"]["labels"][KUEUE] == "research"
    with pytest.raises(Refused) as refused:
        bob.create(placed(job("other", gpus=4), space))
    message = str(refused.value)
    assert refused.value.status == 403
    assert "requests 4 GPU(s)" in message
    assert "spec.queues.groups: [{name: vision, queue: QUEUE}]" in message
    assert f"kubectl annotate namespace {space} kaiwo.ai/queue=QUEUE" in message
    assert bob.create(placed(job("cpu", gpus=0), space))
    assert bob.create(placed(job("said"), space, labels={KUEUE: "mine"}))


def test_a_dry_run_is_answered_and_counted_nowhere(webhooks: Webhooks) -> None:
    webhooks.policy(mode="annotate", queues={"default": "rest"})
    space = webhooks.namespace()
    webhooks.seen(space, labelled)
    replica = webhooks.replicas[0]
    before = replica.metric("kopt_webhook_decisions_total")
    made = webhooks.api.create(placed(job("dry"), space), dryRun="All")
    assert labelled(made)
    assert webhooks.api.find("batch/v1", "Job", "dry", space) is None
    assert replica.metric("kopt_webhook_decisions_total") == before


def test_a_conforming_pod_costs_one_call_and_is_refused_all_the_same_when_nothing_names_its_queue(
    webhooks: Webhooks,
) -> None:
    webhooks.policy(
        mode="enforce",
        queues={"groups": [{"name": "system:masters", "queue": "rest"}]},
        tracing={"samplesPerThousand": 0},
    )
    space = webhooks.namespace()
    webhooks.seen(space, labelled)
    replica, count = webhooks.replicas[0], "kopt_webhook_requests_total"
    before = replica.metric(count)
    for number in range(5):
        assert labelled(webhooks.api.create(placed(pod(f"one-{number}"), space)))
    assert replica.metric(count) == before + 5
    with pytest.raises(Refused, match="no rule names a Kueue queue"):
        person(webhooks, "mallory").create(placed(pod("none"), space))
    assert replica.metric(count, path="/validate", outcome="refused") >= 1


def test_observing_changes_nothing_and_leaves_its_record_in_the_audit_log(webhooks: Webhooks) -> None:
    webhooks.policy(mode="observe", queues={"default": "rest"}, tracing={"samplesPerThousand": 1000})
    space = webhooks.namespace()
    webhooks.seen(space, lambda one: not labelled(one))
    for wanted in (job("watched"), pod("watched")):
        made = webhooks.api.create(placed(wanted, space))
        assert "annotations" not in made["metadata"]
        assert not labelled(made)
    log = webhooks.plane.audit_log
    wait_for(lambda: "mutate.jobs.batch.webhook.kaiwo.ai/queue" in log.read_text())
    assert "observe: DEFAULT" in log.read_text()


def test_the_nearest_mode_wins(webhooks: Webhooks) -> None:
    webhooks.policy(mode="observe", queues={"default": "rest"})
    space = webhooks.namespace({"kaiwo.ai/mode": "annotate"})
    webhooks.seen(space, labelled)
    assert not labelled(webhooks.api.create(placed(job("own"), space, annotations={"kaiwo.ai/mode": "observe"})))
    webhooks.policy(mode="observe", workloadMode="NotLower", queues={"default": "rest"})
    assert labelled(webhooks.api.create(placed(job("owned"), space, annotations={"kaiwo.ai/mode": "observe"})))


def test_only_who_may_bypass_can_opt_out(webhooks: Webhooks) -> None:
    webhooks.policy(mode="enforce", queues={"default": "rest"})
    space = webhooks.namespace()
    webhooks.seen(space, labelled)
    carol, dave = person(webhooks, "carol"), person(webhooks, "dave", bypass=True)
    with pytest.raises(Refused, match="carol' may not take workloads out of the queues"):
        carol.create(placed(job("free"), space, annotations=OPT_OUT))
    assert not labelled(dave.create(placed(job("free"), space, annotations=OPT_OUT)))
    dave.create(placed(deployment("web"), space, annotations=OPT_OUT))
    assert not labelled(carol.patch("apps/v1", "Deployment", "web", {"spec": {"replicas": 2}}, space))
    carol.create(placed(job("later"), space))
    with pytest.raises(Refused, match="verb bypass"):
        carol.patch("batch/v1", "Job", "later", {"metadata": {"annotations": OPT_OUT}}, space)
    webhooks.policy(mode="annotate", queues={"default": "rest"})
    assert labelled(carol.create(placed(job("ignored"), space, annotations=OPT_OUT)))


def test_an_update_that_brings_gpus_is_labelled_and_a_dropped_label_is_kept(webhooks: Webhooks) -> None:
    webhooks.policy(mode="annotate", queues={"default": "rest"})
    space = webhooks.namespace()
    webhooks.seen(space, labelled)
    webhooks.api.create(placed(deployment("web", gpus=0), space))
    change = {"spec": {"template": deployment("web", gpus=2)["spec"]["template"]}}
    assert labelled(webhooks.api.patch("apps/v1", "Deployment", "web", change, space))
    webhooks.policy(mode="annotate", queues={"default": "other"})
    dropped = {"metadata": {"labels": {KUEUE: None}}}
    kept = webhooks.api.patch("apps/v1", "Deployment", "web", dropped, space)
    assert kept["metadata"]["labels"][KUEUE] == "rest"


def test_system_and_unmanaged_namespaces_are_never_touched(webhooks: Webhooks) -> None:
    webhooks.policy(mode="annotate", namespaces="OptOut", queues={"default": "rest"})
    space = webhooks.namespace(managed=False)
    webhooks.seen(space, labelled)
    for name in ("kube-system", SYSTEM):
        made = webhooks.api.create(placed(job("inside"), name), dryRun="All")
        assert not labelled(made)
    webhooks.policy(mode="annotate", namespaces="OptIn", queues={"default": "rest"})
    webhooks.seen(space, lambda one: not labelled(one))


def test_a_train_job_is_labelled_by_the_gpus_of_its_runtime(webhooks: Webhooks) -> None:
    webhooks.plane.install_crds("trainer")
    webhooks.policy(mode="enforce", queues={"groups": [{"name": "system:masters", "queue": "rest"}]})
    space, unseen = webhooks.namespace(), webhooks.namespace(managed=False)
    webhooks.seen(space, labelled)
    for name, gpus in (("with-gpus", 8), ("without", 0)):
        step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
        inner = {"metadata": {"labels": step}, "spec": job("x", gpus)["spec"]}
        spec = {
            "mlPolicy": {"numNodes": 2},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": inner}]}},
        }
        webhooks.api.apply(
            {
                "apiVersion": "trainer.kubeflow.org/v1alpha1",
                "kind": "ClusterTrainingRuntime",
                "metadata": {"name": name},
                "spec": spec,
            }
        )
        wanted = {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": name},
            "spec": {"runtimeRef": {"name": name}},
        }
        assert labelled(webhooks.api.create(placed(wanted, space))) == bool(gpus)
        webhooks.api.create(placed(wanted, unseen))
    listed = webhooks.command("audit", "-n", unseen)["rogue"]
    assert [(one["kind"], one["name"], one["milli_gpus"]) for one in listed] == [("TrainJob", "with-gpus", 16_000)]
    wait_for(lambda: webhooks.replicas[0].metric("kopt_rogue_gpus", namespace=unseen) == 16)


def claim(device_class: str, count: int = 1) -> Object:
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class, "count": count}}
    return {"devices": {"requests": [request]}}


def test_claimed_gpus_are_gpus(webhooks: Webhooks) -> None:
    dra, api = "resource.k8s.io/v1", webhooks.api
    webhooks.policy(mode="enforce", queues={"groups": [{"name": "system:masters", "queue": "rest"}]})
    space, unseen = webhooks.namespace(), webhooks.namespace(managed=False)
    webhooks.seen(space, labelled)
    drivers = {"big": "gpu.nvidia.com", "net": "dra.net"}
    for name, driver in drivers.items():
        spec = {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]}
        api.apply({"apiVersion": dra, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec})
    wanted = {"by-class": ("big", True), "by-driver": ("gpu.amd.com", True), "network": ("net", False)}
    for name, (device_class, gpus) in wanted.items():
        for place in (space, unseen):
            meta = {"name": name, "namespace": place}
            api.create(
                {
                    "apiVersion": dra,
                    "kind": "ResourceClaimTemplate",
                    "metadata": meta,
                    "spec": {"spec": claim(device_class, 2)},
                }
            )
            api.create({"apiVersion": dra, "kind": "ResourceClaim", "metadata": meta, "spec": claim(device_class)})
        by_template = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}]}
        assert labelled(api.create(placed(job(name, 0, **by_template), space))) is gpus
        by_name = {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
        assert labelled(api.create(placed(pod(name, 0, **by_name), space))) is gpus
        api.create(placed(job(name, 0, pods=3, **by_template), unseen))
        api.create(placed(pod(name, 0, **by_name), unseen))
    person(webhooks, "eve")
    with pytest.raises(Refused, match="requests 2 GPU"):
        Api(webhooks.plane.kubeconfig_as("eve")).create(
            placed(
                job("refused", 0, **{"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "by-driver"}]}),
                space,
            )
        )
    rogue = {(one["kind"], one["name"]): one["milli_gpus"] for one in webhooks.command("audit", "-n", unseen)["rogue"]}
    names = ("by-class", "by-driver")
    assert rogue == {("Job", name): 6000 for name in names} | {("Pod", name): 1000 for name in names}
    wait_for(lambda: webhooks.replicas[0].metric("kopt_rogue_gpus", namespace=unseen) == 14)


def gang(lease: str) -> Object:
    running = {"lease": {"namespace": SYSTEM, "name": lease}}
    return {
        "gang": {
            "scheduler": "kai-scheduler",
            "framework": "KAI",
            "queue": "gpu-team",
            "minPods": 3,
            "running": running,
        }
    }


def lease(name: str, age_s: float) -> Object:
    renewed = (datetime.now(UTC) - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": renewed}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": SYSTEM},
        "spec": spec,
    }


def test_a_distributed_job_goes_to_the_gang_scheduler_while_that_one_runs(webhooks: Webhooks) -> None:
    webhooks.plane.install_crds("training-operator")
    webhooks.api.apply(lease("kai", age_s=3600))
    webhooks.policy(mode="enforce", queues={"default": "rest"}, schedulers=gang("kai"))
    space = webhooks.namespace()
    webhooks.seen(space, labelled)
    stale = webhooks.api.create(placed(pytorch_job("stale"), space))
    roles = stale["spec"]["pytorchReplicaSpecs"].values()
    assert not any("schedulerName" in role["template"]["spec"] for role in roles)
    webhooks.api.apply(lease("kai", age_s=0))

    def ganged() -> Object | None:
        one = webhooks.api.create(placed(pytorch_job("dry"), space), dryRun="All")
        return one if "kai-scheduler" in json.dumps(one) else None

    made = wait_for(ganged)
    assert made["metadata"]["labels"] == {KUEUE: "rest", SOURCE: "default", "kai.scheduler/queue": "gpu-team"}
    for role in made["spec"]["pytorchReplicaSpecs"].values():
        assert role["template"]["spec"]["schedulerName"] == "kai-scheduler"
        assert role["template"]["metadata"]["labels"]["kai.scheduler/queue"] == "gpu-team"
    small = webhooks.api.create(placed(pytorch_job("small", workers=1), space))
    assert "schedulerName" not in json.dumps(small["spec"])
    webhooks.api.delete("coordination.k8s.io/v1", "Lease", "kai", SYSTEM)


def test_a_service_is_spread_and_a_written_scheduler_stays(webhooks: Webhooks) -> None:
    webhooks.policy(mode="enforce", queues={"default": "rest"}, schedulers={"spread": {}})
    space = webhooks.namespace()
    webhooks.seen(space, labelled)
    made = webhooks.api.create(placed(deployment("serve", pods=3), space))
    constraints = made["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in constraints] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    own = webhooks.api.create(placed(pod("own", schedulerName="theirs"), space))
    assert own["spec"]["schedulerName"] == "theirs"


def test_a_class_that_is_stated_reaches_the_pods_and_is_listed_with_its_reason(webhooks: Webhooks) -> None:
    webhooks.policy(mode="enforce", queues={"default": "rest"})
    space = webhooks.namespace()
    webhooks.seen(space, labelled)
    stated = placed(job("bench"), space)
    stated["metadata"]["labels"] = {"kaiwo.ai/class": "notebook"}
    made = webhooks.api.create(stated)
    assert made["spec"]["template"]["metadata"]["labels"]["kaiwo.ai/class"] == "interactive"
    webhooks.api.create(placed(job("train"), space))
    webhooks.api.create(placed(deployment("serve", pods=2), space))
    plain = webhooks.api.create(placed(job("wrong"), space) | {"metadata": {"namespace": space, "name": "wrong"}})
    assert "kaiwo.ai/class" not in plain["spec"]["template"]["metadata"]["labels"]
    rows = {row["workload"]: row for row in webhooks.command("classes", "-n", space)["workloads"]}
    assert [(row["workload_class"], row["codes"]) for row in map(rows.__getitem__, sorted(rows))] == [
        ("inference", "CLASS_KIND"),
        ("interactive", "CLASS_STATED"),
        ("unattended", "CLASS_KIND"),
        ("unattended", "CLASS_KIND"),
    ]
    assert (rows["job/train"]["preemptible"], rows["deployment/serve"]["placement"]) == (True, "spread")
    assert rows["deployment/serve"]["why"] == "It is a Deployment."
    webhooks.policy(mode="observe", queues={"default": "rest"})
    webhooks.seen(space, lambda found: not labelled(found))
    again = webhooks.api.create(stated | {"metadata": {**stated["metadata"], "name": "again"}})
    assert "kaiwo.ai/class" not in again["spec"]["template"]["metadata"]["labels"]


def test_the_policy_is_checked_before_it_is_stored(webhooks: Webhooks) -> None:
    lease_of = {"running": {"lease": {"namespace": "a", "name": "b"}}}
    wrong = [
        ({"mode": "enforce"}, "would refuse every workload"),
        ({"mode": "force"}, "supported values"),
        ({"queues": {"default": "Not A Queue"}}, "should match"),
        ({"queues": {"groups": [{"name": "a", "queue": "x"}, {"name": "a", "queue": "y"}]}}, "Duplicate"),
        ({"schedulers": {"packing": {"scheduler": "p", "maxGpus": "some", **lease_of}}}, "maxGpus is a number"),
        ({"schedulers": {"packing": {"scheduler": "p"}}}, "Required value"),
        ({"schedulers": {"gang": {"scheduler": "p", "running": {}}}}, "either a lease or a deployment"),
        ({"sizing": {"budgetMilliseconds": 301}}, "less than or equal to 300"),
    ]
    for spec, message in wrong:
        with pytest.raises(Refused, match=message):
            webhooks.api.create(POLICY | {"metadata": {"name": "default"}, "spec": spec}, dryRun="All")
    with pytest.raises(Refused, match="its name is"):
        webhooks.api.create(POLICY | {"metadata": {"name": "second"}, "spec": {}}, dryRun="All")
    packing = {"scheduler": "p", "maxGpus": "0.5", **lease_of}
    good = {"mode": "enforce", "queues": {"default": "a"}, "schedulers": {"packing": packing}}
    webhooks.api.delete(POLICY["apiVersion"], "ConformancePolicy", "default")
    assert webhooks.api.create(POLICY | {"spec": good}, dryRun="All")


def test_the_audit_lists_what_bypasses_the_queues_with_a_patch_that_works(webhooks: Webhooks) -> None:
    webhooks.policy(mode="annotate", queues={"default": "rest"})
    space = webhooks.namespace(managed=False)
    webhooks.api.create(placed(job("old", gpus=3, pods=2), space, labels=None))
    webhooks.api.create(placed(job("fine"), space, labels={KUEUE: "mine"}))
    webhooks.api.create(placed(pod("lone"), space))
    replica = webhooks.replicas[0]
    wait_for(lambda: replica.metric("kopt_rogue_gpus", namespace=space) == 7)
    answer = webhooks.command("audit", "-n", space)
    assert answer["rogue_gpus"] == 7
    found = {(one["kind"], one["name"], one["queue"]) for one in answer["rogue"]}
    assert found == {("Job", "old", "rest"), ("Pod", "lone", "rest")}
    patch = next(one["patch"] for one in answer["rogue"] if one["name"] == "old")
    path = webhooks.api.path("batch/v1", "Job", space, "old")
    done = webhooks.api.request("PATCH", path, json=patch, headers={"Content-Type": "application/json-patch+json"})
    assert done.json()["metadata"]["labels"][KUEUE] == "rest"
    wait_for(lambda: replica.metric("kopt_rogue_gpus", namespace=space) == 1)


def test_a_new_certificate_is_served_without_a_restart(webhooks: Webhooks) -> None:
    webhooks.policy(mode="annotate", queues={"default": "rest"})
    space = webhooks.namespace()
    webhooks.seen(space, labelled)
    pid = webhooks.replicas[0].server.pid

    def bundle() -> str:
        found = webhooks.api.get("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", CONFIGURATION)
        return str(found["webhooks"][0]["clientConfig"].get("caBundle"))

    before = bundle()
    webhooks.api.delete("v1", "Secret", "kopt-webhook-tls", SYSTEM)
    wait_for(lambda: bundle() != before)
    webhooks.seen(space, labelled)
    wait_for(lambda: labelled(webhooks.api.create(placed(job("after"), space), dryRun="All")))
    assert webhooks.replicas[0].server.pid == pid


def test_one_of_two_replicas_is_enough_and_with_none_jobs_are_created_as_written(webhooks: Webhooks) -> None:
    second = webhooks.start()
    webhooks.policy(
        mode="enforce", queues={"default": "rest"}, schedulers={"spread": {}}, tracing={"samplesPerThousand": 1000}
    )
    space = webhooks.namespace()
    webhooks.seen(space, labelled)
    webhooks.replicas.pop(0).server.kill()
    made = [webhooks.api.create(placed(job(f"job-{number}"), space)) for number in range(30)]
    assert sum(map(labelled, made)) >= 29
    second.server.kill()
    webhooks.replicas.clear()
    hooks = webhooks.api.get("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", CONFIGURATION)[
        "webhooks"
    ]
    assert {hook["failurePolicy"] for hook in hooks} == {"Ignore"}
    wanted = placed(deployment("alone", pods=3), space)
    alone = webhooks.api.create(wanted)
    assert alone["metadata"].keys() & {"labels", "annotations"} == set()
    assert "topologySpreadConstraints" not in alone["spec"]["template"]["spec"]
    as_written = webhooks.api.create(placed(job("alone"), space))
    assert not labelled(as_written)
    webhooks.start()
