"""Offline and in the API server the same expressions give the same answers, over generated pods and policies."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from compliance.conftest import Object, Policies, pod, policy
from controlplane.processes import wait_for

from kopt.cluster.objects.custom.compliance_policy import policy_of
from kopt.cluster.workloads.compliance import surroundings
from kopt.core.workload.compliance import Standing
from kopt.policies.compliance.offline import OfflinePolicy

pytestmark = [pytest.mark.cluster, pytest.mark.long]
REGION, PRODUCT = "topology.kubernetes.io/region", "nvidia.com/gpu.product"
PODS_PER_POLICY = 45
MODELS = ["NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-40GB", "NVIDIA-GH100", "h100"]
FUTURE = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
PAST = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
PARTS: list[dict[str, Any]] = [
    {"images": {"allowed": ["registry.example.com/*", "ghcr.io/a+b/*"], "denied": ["*:latest"]}},
    {"hardware": {"allowed": ["h100"]}, "appliesTo": "Accelerated"},
    {"regions": {"allowed": ["eu-west-1", "eu-north-1"]}},
    {"residency": {"namespaceLabel": "example.com/residency", "regions": {"eu": ["eu-west-1"], "us": ["us-east-1"]}}},
    {
        "maximumGpus": 4,
        "rules": [
            {"expression": "!has(variables.spec.hostNetwork) || !variables.spec.hostNetwork", "message": "no host."},
            {"expression": "variables.labels['team'].startsWith('ml-')", "message": "a team."},
        ],
        "exemptions": [
            {"labels": {"legacy": "yes"}, "until": FUTURE, "reason": "moves"},
            {"image": "ghcr.io/*", "until": PAST, "reason": "has ended"},
        ],
    },
]


def generated(draw: random.Random, space: str) -> Object:
    images = ["registry.example.com/a:1", "registry.example.com/a:latest", "registryXexample.com/a", "ghcr.io/a+b/c:2",
              "ghcr.io/aab/c", "nginx", "docker.io/it's:1"]  # fmt: skip
    spec: Object = {}
    if draw.random() < 0.6:
        values = {REGION: draw.choice(["eu-west-1", "us-east-1", "eu-north-1"]), PRODUCT: draw.choice(MODELS)}
        spec["nodeSelector"] = {key: value for key, value in values.items() if draw.random() < 0.6}
    if draw.random() < 0.4:
        key = draw.choice([REGION, PRODUCT])
        options = MODELS if key == PRODUCT else ["eu-west-1", "us-east-1", "eu-north-1"]
        terms = [
            {"matchExpressions": [{"key": key, "operator": "In", "values": draw.sample(options, draw.randint(1, 2))}]}
            for _ in range(draw.randint(1, 2))
        ]
        terms += [{"matchExpressions": [{"key": key, "operator": "Exists"}]}] if draw.random() < 0.2 else []
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    if draw.random() < 0.3:
        spec["initContainers"] = [{"name": "init", "image": draw.choice(images)}]
    if draw.random() < 0.2:
        spec["hostNetwork"] = draw.random() < 0.5
    if draw.random() < 0.6:
        amount = str(draw.choice([1, 4, 5, 8]))
        spec["container"] = {"resources": {"limits": {draw.choice(["nvidia.com/gpu", "amd.com/gpu"]): amount}}}
    labels = {"team": draw.choice(["ml-a", "web"])} if draw.random() < 0.7 else {}
    labels |= {"legacy": "yes"} if draw.random() < 0.3 else {}
    annotations = {"gpu-fraction": "0.5"} if draw.random() < 0.2 else {}
    return pod(space, draw.choice(images), metadata={"labels": labels, "annotations": annotations}, **spec)


@pytest.mark.parametrize("number", range(len(PARTS)))
def test_both_judge_the_same_pods_alike(policies: Policies, number: int) -> None:
    """225 pods in all; what each becomes by the API server's own defaults is judged offline."""
    draw = random.Random(number)
    residency = {"example.com/residency": "eu"} if number == 3 else {}
    space = policies.api.space("judged", {"kaiwo.ai/managed": "true", **residency})
    free = policies.api.space("free")
    document = policy(f"agreed-{number}", mode="Deny", **PARTS[number])
    policies.apply(document)
    offline = OfflinePolicy(policy_of(document), surroundings())
    namespace = policies.api.get("v1", "Namespace", space, "")
    manifests = [generated(draw, space) for _ in range(PODS_PER_POLICY)]
    stored = [
        policies.api.create({**item, "metadata": {**item["metadata"], "namespace": free}}, dryRun="All")
        for item in manifests
    ]
    for item in stored:
        item["metadata"]["namespace"] = space
    judged = [offline.evaluate(item, namespace, datetime.now(UTC).timestamp()) for item in stored]
    refused = {Standing.VIOLATES, Standing.NOT_EVALUATED}
    worst = next(item for item, found in zip(manifests, judged, strict=True) if found.standing in refused)
    wait_for(lambda: policies.refusal(worst))
    said = [policies.refusal(item) for item in manifests]
    assert [bool(text) for text in said] == [found.standing in refused for found in judged]
    for text, found in zip(said, judged, strict=True):
        # The API server names one of the violations.
        if found.standing is Standing.VIOLATES:
            assert any(message in text for message in found.messages), (text, found)
    assert 5 <= sum(map(bool, said)) <= PODS_PER_POLICY - 2
