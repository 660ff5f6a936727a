"""With its own account's rights as the chart gives them, and with the way to the API server cut in the middle."""

import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from chart import CHART, Helm
from controlplane.processes import wait_for
from cut_off import way_to
from deploy.rights import assert_changes_only_what_is_ours, assert_refused_nothing, audited, granted, used

from .teams import SYSTEM, Controller, Object, Team

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
ACCOUNT = "kopt-preemption"
RIGHTS = {
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
SELDOM = {
    ("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute",
    ("update", "", "secrets"): "only to rotate a certificate",
    ("patch", "admissionregistration.k8s.io", "mutatingwebhookconfigurations"): "only for another certificate",
    ("update", "admissionregistration.k8s.io", "mutatingwebhookconfigurations"): "only for another address",
}


def _chart(helm: Path, **values: bool) -> list[Object]:
    with tempfile.TemporaryDirectory() as folder:
        return Helm(helm, Path(folder)).render({"preemption": values})


def rendered(helm: Path, **values: bool) -> list[Object]:
    return [one for one in _chart(helm, **values) if "preemption" in one["metadata"]["name"]]


def rights_of_switches(helm: Path, **values: bool) -> list[Object]:
    """Reading the switches: what may not be read is off."""
    documents = _chart(helm, **values)
    return [one for one in documents if one["kind"] in RIGHTS and one["metadata"]["name"] == "kopt-features"]


def test_it_is_off_unless_it_is_asked_for(helm: Path) -> None:
    assert rendered(helm) == []
    (deployment,) = [one for one in rendered(helm, enabled=True) if one["kind"] == "Deployment"]
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--mode=observe", "--budget=5m", "--cover=60s", "--service=kopt-preemption"} <= set(arguments)


def test_it_is_refused_nothing_and_uses_every_right(
    team: Team, controller: Callable[..., Controller], helm: Path
) -> None:
    given = [one for one in rendered(helm, enabled=True) if one["kind"] in RIGHTS]
    switches = rights_of_switches(helm, enabled=True)
    team.plane.apply_crds([CHART / "crds" / "evictions.yaml"])
    team.api.apply(*given, *switches)
    # Controllers before it left them; creating them is a right of its own.
    team.api.delete("coordination.k8s.io/v1", "Lease", "kopt-preemption", SYSTEM)
    team.api.delete("v1", "Secret", "kopt-preemption-tls", SYSTEM)
    roles, started = [one for one in given if one["kind"] in ("Role", "ClusterRole")], datetime.now(UTC)

    def seen() -> list[Object]:
        return audited(team.plane, ACCOUNT, started)

    try:
        controller("--mode=enforce", kubeconfig=team.plane.kubeconfig_for(ACCOUNT, SYSTEM))
        for name in ("oldest", "middle", "newest"):
            team.run(name, 4)
            team.note(name, "CKPT_WRITING", safe=False)
        team.submit("urgent", 4, "high")
        wait_for(lambda: "PreemptionWaits" in team.events("urgent"), what="it is held")
        asks = {"lost": 800, "ago_s": 190, "saves_on_request": "true"}
        wait_for(lambda: team.note("middle", **asks) or team.requests("middle"), what="it is asked to save", every_s=1)
        wait_for(
            lambda: team.note("middle", lost=10, ago_s=0) or team.admitted("urgent"), what="it has its GPUs", every_s=2
        )
        assert team.evicted() == {"middle"}
        wait_for(lambda: not team.left_over(), what="every priority is back")
        wait_for(lambda: granted(roles) - used(seen()) - SELDOM.keys() == set(), what="every right is used")
        assert SELDOM.keys() <= granted(roles)
        assert_refused_nothing(seen())
        assert_changes_only_what_is_ours(team.plane, ACCOUNT, SYSTEM, gates=True)
    finally:
        for one in (*given, *switches):
            team.api.delete(one["apiVersion"], one["kind"], one["metadata"]["name"], SYSTEM)


@pytest.mark.long
def test_it_goes_on_after_the_way_to_the_api_server_was_cut(
    team: Team, controller: Callable[..., Controller], tmp_path: Path
) -> None:
    with way_to(team.plane.kubeconfig, tmp_path) as way:
        one = controller("--mode=enforce", kubeconfig=way.kubeconfig)
        for name in ("oldest", "middle", "newest"):
            team.run(name, 4)
            team.note(name, "CKPT_WRITING", safe=False)
        team.submit("urgent", 4, "high")
        wait_for(lambda: "PreemptionWaits" in team.events("urgent"), what="it is held")
        way.close()
        one.server.wait_until(lambda: one.metric("kopt_preemption_leading") == 0.0, what="it does not lead any more")
        team.note("middle", lost=10)
        assert team.evicted() == set()
        way.open()
        wait_for(lambda: team.note("middle", lost=10) or team.admitted("urgent"), what="it has its GPUs", every_s=2)
        wait_for(lambda: not team.left_over(), what="every priority is back")
    assert team.evicted() == {"middle"}
