"""The API server enforces what `kopt policies apply` writes, with no process of ours anywhere."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from compliance.conftest import API, Policies, pod, policy
from controlplane.api import Refused
from controlplane.processes import wait_for

pytestmark = pytest.mark.cluster
TRUSTED = policy(
    "trusted", mode="Deny", message="Ask the platform team.", images={"allowed": ["registry.example.com/*"]}
)


def test_a_pod_that_violates_is_denied_with_our_message_and_another_passes(policies: Policies, space: str) -> None:
    policies.apply(TRUSTED)
    said = policies.in_force(pod(space, "docker.io/evil:1"))
    assert "CompliancePolicy trusted: image docker.io/evil:1: images have to match registry.example.com/*." in said
    assert "Ask the platform team." in said
    assert policies.refusal(pod(space)) == ""
    # Only managed namespaces.
    assert policies.refusal(pod(policies.api.space("other"), "docker.io/evil:1")) == ""


@pytest.mark.long
def test_an_image_that_is_changed_later_is_denied_as_well_and_labels_are_not(policies: Policies, space: str) -> None:
    policies.apply(TRUSTED)
    policies.in_force(pod(space, "docker.io/evil:1"))
    stored = policies.api.create(pod(space))
    name = stored["metadata"]["name"]
    change = {"spec": {"containers": [{**stored["spec"]["containers"][0], "image": "docker.io/evil:1"}]}}
    with pytest.raises(Refused, match="images have to match"):
        policies.api.patch("v1", "Pod", name, change, space)
    policies.api.patch("v1", "Pod", name, {"metadata": {"labels": {"a": "b"}}}, space)


def test_audit_warns_and_lets_through_and_a_job_is_warned_of_at_once(policies: Policies, space: str) -> None:
    policies.apply({**TRUSTED, "spec": {**TRUSTED["spec"], "mode": "Audit"}})
    bad = pod(space, "docker.io/evil:1")
    (warning,) = wait_for(lambda: policies.warnings(bad))
    assert "images have to match registry.example.com/*" in warning
    assert policies.warnings(pod(space)) == []
    policies.apply(TRUSTED)
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": space},
        "spec": {"template": {"spec": {**bad["spec"], "restartPolicy": "Never"}}},
    }
    assert any("images have to match" in line for line in wait_for(lambda: policies.warnings(job)))


def test_an_exemption_lets_pass_until_its_time_and_no_longer_whatever_the_user_writes(
    policies: Policies, space: str
) -> None:
    until = datetime.now(UTC) + timedelta(seconds=45)
    exemption = {
        "namespace": space,
        "image": "docker.io/old:*",
        "until": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "reason": "moves to the registry",
    }
    policies.apply({**TRUSTED, "spec": {**TRUSTED["spec"], "exemptions": [exemption]}})
    policies.in_force(pod(space, "docker.io/evil:1"))
    assert policies.refusal(pod(space, "docker.io/old:1")) == ""
    assert datetime.now(UTC) < until
    back_dated = {"creationTimestamp": "2020-01-01T00:00:00Z"}
    while datetime.now(UTC) < until + timedelta(seconds=1):
        time.sleep(0.2)
    assert "images have to match" in policies.refusal(pod(space, "docker.io/old:1"))
    assert "images have to match" in policies.refusal(pod(space, "docker.io/old:1", metadata=back_dated))


def test_defaults_are_set_where_nothing_is_written_and_satisfy_the_same_policy(policies: Policies, space: str) -> None:
    region = "topology.kubernetes.io/region"
    document = policy(
        "region",
        mode="Deny",
        regions={"allowed": ["eu-west-1", "eu-west-2"]},
        defaults={"nodeSelector": {region: "eu-west-1"}, "labels": {"example.com/cost-centre": "none"}},
    )
    policies.apply(document)
    assert "eu-west-1 or eu-west-2" in policies.in_force(pod(space, nodeSelector={region: "us-east-1"}))

    def created(**spec: object) -> dict[str, object]:
        return policies.api.create(pod(space, **spec), dryRun="All")

    got = wait_for(lambda: _or_none(created))
    assert got["spec"]["nodeSelector"] == {region: "eu-west-1"}
    assert got["metadata"]["labels"] == {"example.com/cost-centre": "none"}
    labels, selector = {"example.com/cost-centre": "7"}, {region: "eu-west-2", "disk": "ssd"}
    own = created(nodeSelector=selector, metadata={"labels": labels})
    assert (own["spec"]["nodeSelector"], own["metadata"]["labels"]) == (selector, labels)


def _or_none(created):  # type: ignore[no-untyped-def]
    try:
        return created()
    except Refused:
        return None


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("variables.spec.containers.size() ==", "Syntax error"),
        ("variables.nothing == 1", "undefined field 'nothing'"),
        ("1 + 'a' == 2", "found no matching overload"),
        ("'a string'", "but found 'string'"),
    ],
)
def test_cel_that_does_not_type_check_is_refused_as_it_is_planned(
    policies: Policies, expression: str, says: str
) -> None:
    document = policy("broken", mode="Deny", rules=[{"expression": expression, "message": "no."}])
    status, answer, said = policies.run("policies", "plan", document=document)
    assert status == 1
    assert says in said
    assert says in " ".join(answer["problems"])
    status, _, _ = policies.run("policies", "apply", document=document)
    assert status == 1
    assert policies.api.list(API, "ValidatingAdmissionPolicy", labels="app.kubernetes.io/component=policies") == []
    assert policies.api.list("kaiwo.ai/v1alpha1", "CompliancePolicy") == []


@pytest.mark.long
def test_applying_again_changes_nothing_and_a_part_that_is_dropped_goes(policies: Policies) -> None:
    full = {**TRUSTED, "spec": {**TRUSTED["spec"], "defaults": {"labels": {"a": "b"}}}}
    assert policies.apply(full)["applied"] == 6
    assert policies.apply(full) == {
        "schema": "kopt/v1", "dry_run": False, "applied": 0, "problems": [], "changes": [],
    }  # fmt: skip
    (row,) = policies.run("policies", "list")[1]["policies"]
    assert (row["state"], row["parts"], row["warnings"]) == ("enforced", ["images", "defaults"], [])
    gone = policies.apply(TRUSTED)["changes"]
    assert sorted((row["action"], row["kind"]) for row in gone) == [
        ("delete", "MutatingAdmissionPolicy"),
        ("delete", "MutatingAdmissionPolicyBinding"),
    ]


@pytest.mark.long
def test_what_a_policy_becomes_goes_with_it(policies: Policies) -> None:
    policies.apply(TRUSTED)
    policies.api.delete("kaiwo.ai/v1alpha1", "CompliancePolicy", "trusted")
    for kind in ("ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"):
        wait_for(lambda kind=kind: not policies.api.list(API, kind, labels="app.kubernetes.io/component=policies"))


def test_off_takes_the_policies_away_and_leaves_those_of_others(policies: Policies, space: str) -> None:
    name = "pods.theirs.policies.kaiwo.ai"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    theirs = {
        "apiVersion": API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "true"}]},
    }
    policies.api.apply(theirs)
    status, answer, _ = policies.run("policies", "plan", document={**TRUSTED, "metadata": {"name": "theirs"}})
    assert status == 1
    assert "not of `kopt policies`" in answer["problems"][0]
    policies.apply({**TRUSTED, "spec": {**TRUSTED["spec"], "defaults": {"labels": {"a": "b"}}}})
    policies.in_force(pod(space, "docker.io/evil:1"))
    status, answer, said = policies.run("off", "--wait", "5s")
    assert status == 0, said
    assert len([step for step in answer["steps"] if step["name"].endswith(".trusted.policies.kaiwo.ai")]) == 6
    wait_for(lambda: policies.refusal(pod(space, "docker.io/evil:1")) == "")
    assert policies.api.find(API, "ValidatingAdmissionPolicy", name, "") is not None
    # The declaration stays, and comes back.
    assert policies.run("policies", "list")[1]["policies"][0]["state"] == "not applied"
    status, answer, _ = policies.run("policies", "apply")
    assert (status, answer["applied"]) == (0, 6)
    policies.api.delete(API, "ValidatingAdmissionPolicy", name)
