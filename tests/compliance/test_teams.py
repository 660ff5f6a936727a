"""Team totals: what no expression over one pod can see, held by the webhook in front of the real API server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from admission.conftest import Webhooks, running
from compliance.conftest import pod as made
from compliance.conftest import policy
from controlplane.api import Refused
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from kopt.core.workload.compliance import CompliancePolicy, TeamLimit, TeamPod
from kopt.policies.compliance.teams import excess, totals

TEAM = "example.com/team"


def test_a_team_is_a_label_or_a_namespace_and_pods_of_no_team_are_not_counted() -> None:
    pods = [TeamPod("a", {TEAM: "x"}, 1500), TeamPod("b", {TEAM: "x"}, 500), TeamPod("b", {}, 4000)]
    assert totals(TeamLimit(2, TEAM), pods) == {"x": 2000}
    assert totals(TeamLimit(2), pods) == {"a": 1500, "b": 4500}
    limited = CompliancePolicy("p", team=TeamLimit(2, TEAM), message="Ask.")
    assert excess(limited, TeamPod("a", {TEAM: "x"}, 500), 1500) == ""
    assert "team x may have 2 GPUs together; its pods have 1.5, and this one asks for 1. Ask." in excess(
        limited, TeamPod("a", {TEAM: "x"}, 1000), 1500
    )
    assert excess(limited, TeamPod("a", {}, 9000), 0) == ""


@pytest.fixture(scope="module")
def webhooks(control_plane: ControlPlane) -> Iterator[Webhooks]:
    yield from running(control_plane)


def asking(space: str, team: str, gpus: str = "2") -> dict[str, object]:
    container = {"resources": {"limits": {"nvidia.com/gpu": gpus}}}
    return made(space, metadata={"labels": {TEAM: team}}, container=container)


@pytest.mark.cluster
def test_a_team_is_held_to_its_total_also_by_pods_that_arrive_at_once(webhooks: Webhooks) -> None:
    api = webhooks.api
    first, second = webhooks.namespace(), webhooks.namespace()
    api.apply(policy("totals", mode="Deny", maximumPerTeam={"gpus": 8, "label": TEAM}))

    def refusal(manifest: dict[str, object], **params: str) -> str:
        try:
            api.create(manifest, **params)
        except Refused as refused:
            return refused.message
        return ""

    wait_for(lambda: refusal(asking(first, "probe", "9"), dryRun="All"))
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda number: refusal(asking([first, second][number % 2], "x")), range(8)))
    assert said.count("") == 4
    assert all("team x may have 8 GPUs together" in text for text in said if text)
    assert refusal(asking(first, "y")) == ""
    done = api.list("v1", "Pod", labels=f"{TEAM}=x")[0]
    api.delete("v1", "Pod", done["metadata"]["name"], done["metadata"]["namespace"])
    wait_for(lambda: refusal(asking(first, "x"), dryRun="All") == "")
    api.apply(policy("totals", mode="Audit", maximumPerTeam={"gpus": 1, "label": TEAM}))
    wait_for(lambda: refusal(asking(first, "x"), dryRun="All") == "")
    api.delete("kaiwo.ai/v1alpha1", "CompliancePolicy", "totals")
