"""What a policy becomes, and judging by it offline, without any cluster."""

import re
from pathlib import Path
from typing import Any

import cel
import pytest
import yaml
from compliance.conftest import Object, pod, policy
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.objects.custom.compliance_policy import policy_of
from kopt.cluster.workloads.compliance import is_subject, surroundings
from kopt.controllers.compliance.report import report
from kopt.core.workload.compliance import Standing
from kopt.policies.compliance.compile import compile_policy, names_of, policy_name
from kopt.policies.compliance.expressions import glob, literal
from kopt.policies.compliance.offline import OfflinePolicy, syntax_errors

DOCS = Path(__file__).parents[2] / "docs" / "policies.md"
MANAGED: Object = {"metadata": {"name": "team", "labels": {"kaiwo.ai/managed": "true"}}}
ENDS = "2030-01-01T00:00:00Z"
ENDS_S = 1893456000.0


def offline(**spec: Any) -> OfflinePolicy:
    return OfflinePolicy(policy_of(policy("p", **spec)), surroundings())


@given(st.text())
def test_any_text_is_a_literal_of_itself(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert cel.compile(literal(text)).execute({}) == text


@given(st.text(alphabet="ab./*+-:", max_size=8), st.text(alphabet="ab./+-:", max_size=8))
def test_a_glob_matches_as_its_pieces_follow_each_other(pattern: str, text: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None
    assert cel.compile(f"{literal(text)}.matches({literal(glob(pattern))})").execute({}) is expected


def test_an_exemption_ends_by_the_clock_whenever_the_pod_was_created() -> None:
    exemption = {"namespace": "team", "until": ENDS, "reason": "moves"}
    judge = offline(images={"allowed": ["good/*"]}, exemptions=[exemption])
    bad = pod("team", "bad/x:1", metadata={"namespace": "team", "creationTimestamp": "2020-01-01T00:00:00Z"})
    before, after = (judge.evaluate(bad, MANAGED, ENDS_S + shift) for shift in (-1, 0))
    assert (before.standing, before.exempt_until_s) == (Standing.EXEMPT, ENDS_S)
    assert (after.standing, after.exempt_until_s) == (Standing.VIOLATES, None)
    assert judge.evaluate(pod("other", "bad/x:1"), MANAGED, ENDS_S - 1).standing is Standing.VIOLATES
    assert judge.evaluate(pod("team", "good/x:1"), MANAGED, ENDS_S - 1).standing is Standing.CONFORMS


def test_what_cannot_be_evaluated_is_not_taken_to_conform() -> None:
    rule = {"expression": "quantity('1Gi').isGreaterThan(quantity('1Mi'))", "message": "large."}
    found = offline(rules=[rule]).evaluate(pod("team"), MANAGED, 0)
    assert found.standing is Standing.NOT_EVALUATED
    assert "quantity" in found.messages[0]


def test_a_comment_in_a_rule_does_not_swallow_what_follows() -> None:
    judge = offline(rules=[{"expression": "false // not true", "message": "never."}])
    assert judge.evaluate(pod("team"), MANAGED, 0).standing is Standing.VIOLATES


def test_what_is_no_cel_is_said_without_a_cluster() -> None:
    broken = policy_of(policy("p", rules=[{"expression": "1 +", "message": "no."}]))
    (said,) = syntax_errors(broken, surroundings())
    assert "Syntax error" in said


def test_every_object_is_named_after_its_policy_and_templates_are_only_warned_of() -> None:
    declared = policy_of(policy("a.b", mode="Deny", images={"allowed": ["x"]}, defaults={"labels": {"a": "b"}}))
    objects = compile_policy(declared, surroundings())
    assert {item["metadata"]["name"] for item in objects} == set(names_of("a.b"))
    assert {policy_name(item) for item in objects} == {"a.b"}
    actions = {
        item["metadata"]["name"]: item["spec"]["validationActions"]
        for item in objects
        if item["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    assert actions == {
        "pods.a.b.policies.kaiwo.ai": ["Deny", "Audit"],
        "templates.a.b.policies.kaiwo.ai": ["Warn", "Audit"],
    }


def test_nodes_that_a_default_selects_are_not_asked_of_templates() -> None:
    spec = {"regions": {"allowed": ["eu"]}, "defaults": {"nodeSelector": {"topology.kubernetes.io/region": "eu"}}}
    names = {item["metadata"]["name"] for item in compile_policy(policy_of(policy("p", **spec)), surroundings())}
    assert names == {"pods.p.policies.kaiwo.ai", "defaults.p.policies.kaiwo.ai"}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"mode": "Enforce"}, "spec.mode is Audit or Deny"),
        ({"image": {}}, "spec.image is no field"),
        ({"images": {"allowed": []}}, "spec.images.allowed is a list of one or more names"),
        ({"images": {"allowed": ["a", 3]}}, "spec.images.allowed is a list"),
        ({"maximumGpus": -1}, "spec.maximumGpus is a number"),
        ({"residency": {"regions": {"eu": ["a"]}}}, "spec.residency needs a namespaceLabel"),
        ({"rules": [{"expression": "true"}]}, "spec.rules[0] needs an expression"),
        ({"exemptions": [{"until": "soon", "reason": "r", "namespace": "a"}]}, "spec.exemptions[0].until is a time"),
        ({"exemptions": [{"until": ENDS, "namespace": "a"}]}, "spec.exemptions[0] needs a reason"),
        ({"exemptions": [{"until": ENDS, "reason": "r"}]}, "nobody is exempt from everything"),
        ({"maximumPerTeam": {"label": "a"}}, "spec.maximumPerTeam needs gpus"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_field(spec: Object, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        policy_of(policy("p", **spec))


def test_the_policy_of_the_documentation_can_be_compiled() -> None:
    (text,) = re.findall(r"```yaml\n(apiVersion.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(compile_policy(policy_of(yaml.safe_load(text)), surroundings())) == 6


def test_namespaces_are_chosen_as_the_api_server_does() -> None:
    ours = policy_of(policy("p", maximumGpus=1))
    own = policy_of(policy("p", maximumGpus=1, namespaceSelector={"matchLabels": {"tier": "prod"}}))
    prod: Object = {"metadata": {"name": "x", "labels": {"tier": "prod"}}}
    system: Object = {"metadata": {"name": "kube-system", "labels": {"tier": "prod", "kaiwo.ai/managed": "true"}}}
    assert [is_subject(ours, space) for space in (MANAGED, prod, system)] == [True, False, False]
    assert [is_subject(own, space) for space in (MANAGED, prod, system)] == [False, True, False]


def test_the_report_counts_by_namespace_and_policy() -> None:
    limited = {"resources": {"limits": {"nvidia.com/gpu": "3"}}}
    pods = [
        pod("team", "bad/x", container=limited),
        pod("team", "good/x", container=limited),
        pod("elsewhere", "bad/x"),
    ]
    for number, item in enumerate(pods):
        item["metadata"]["name"] = f"p{number}"
    declared = [
        policy_of(policy("images", images={"allowed": ["good/*"]})),
        policy_of(policy("teams", maximumPerTeam={"gpus": 5})),
    ]
    images, teams = report(declared, pods, [MANAGED, {"metadata": {"name": "elsewhere"}}], 0.0)
    assert (images.namespace, images.evaluated, images.number(Standing.VIOLATES)) == ("team", 2, 1)
    assert images.pods[0].pod == "p0"
    assert teams.team_excess == ("team team has 6 GPUs, and may have 5",)
