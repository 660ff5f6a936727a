"""The meter with its own account's token: it meters, stops the queue of a budget that is spent, opens it again when the
budget is gone, and is refused nothing."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from chart import WITHOUT_DEFAULTS
from controlplane.api import Api, Refused
from controlplane.kueue import Kueue
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from cost.conftest import GPU, PRODUCT, Team

from kopt.cluster.client.resources import KUEUE_LOCAL_QUEUES
from kopt.cluster.holds.hold import hold_queue, release

from .rights import (
    assert_off_unless_enabled,
    assert_refused_nothing,
    assert_uses_its_rights,
    audited,
    roles_of,
    start_controller,
)

ACCOUNT = "kopt-meter"
LOCAL_QUEUE = ("kueue.x-k8s.io/v1beta1", "LocalQueue", "gpus")
VALUES = {
    "meter": {"enabled": True, "mode": "enforce"},
    **WITHOUT_DEFAULTS,
}
SELDOM = {("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute"}


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    assert_off_unless_enabled(charts, VALUES, ACCOUNT)


def test_several_replicas_need_a_database(charts: Any) -> None:
    with pytest.raises(Exception, match=r"meter\.database\.secret"):
        charts.render({"meter": {"enabled": True, "replicas": 2}})
    shared = {"enabled": True, "replicas": 2, "database": {"secret": "costs"}}
    (deployment,) = (
        document
        for document in charts.render({"meter": shared})
        if (document["kind"], document["metadata"]["name"]) == ("Deployment", ACCOUNT)
    )
    variables = {item["name"] for item in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert "KOPT_DATABASE_URL" in variables
    assert "strategy" not in deployment["spec"]


@pytest.mark.cluster
@pytest.mark.long
def test_it_is_refused_nothing_and_uses_its_rights(
    control_plane: ControlPlane,
    charts: Any,
    install: Callable[..., None],
    here: tuple[Kueue, Kwok],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KOPT_HOME", str(tmp_path))
    install(VALUES)
    started, api, (kueue, kwok) = datetime.now(UTC), control_plane.api, here
    with kwok.nodes(1, gpus=8, labels=PRODUCT) as nodes:
        team = Team(control_plane, nodes, "meter-rights")
        with kueue.queue(team.space, {GPU: 8, "cpu": 100}):
            team.job("trains", 8, "gpus")
            wait_for(lambda: team.runs("trains"), what="it is admitted")
            server, metrics = start_controller(control_plane, charts, VALUES, ACCOUNT, options=["--reconcile=1s"])
            server.wait_until(lambda: "kopt_meter_leading 1.0" in httpx.get(metrics, trust_env=False).text)
            api.create(
                {
                    "apiVersion": "kaiwo.ai/v1alpha1",
                    "kind": "KaiwoBudget",
                    "metadata": {"name": team.space},
                    "spec": {"target": {"namespace": team.space}, "limit": {"gpuHours": "0.001"}, "action": "Hold"},
                }
            )
            server.wait_until(lambda: team.queue()["spec"].get("stopPolicy") == "Hold", what="its queue is stopped")
            api.delete("kaiwo.ai/v1alpha1", "KaiwoBudget", team.space)
            server.wait_until(lambda: team.queue()["spec"].get("stopPolicy") == "None", what="its queue is open")
            server.stop()
            seen = audited(control_plane, ACCOUNT, started)
            _holds_and_nothing_else(control_plane, team)
            _is_opened_by_off(control_plane, team)
            api.delete("batch/v1", "Job", "trains", team.space, propagationPolicy="Background")
    assert_refused_nothing(seen)
    assert_uses_its_rights(roles_of(charts, VALUES, ACCOUNT), seen, SELDOM)


def _is_opened_by_off(plane: ControlPlane, team: Team) -> None:
    """`kopt off` with its own account: the chart's fences let it open what is held, with no other right."""
    queue = team.queue()
    held = hold_queue(queue, "budget")
    del held["metadata"]["resourceVersion"]
    opened = release(KUEUE_LOCAL_QUEUES, plane.api.patch(*LOCAL_QUEUE, held, team.space))
    # Kueue counts into its status all the time; `kopt off` reads it again where it met that.
    del opened["metadata"]["resourceVersion"]
    off = Api(Path(plane.kubeconfig_for("kopt-off", "kopt-system")))
    off.patch(*LOCAL_QUEUE, opened, team.space)
    off.http.close()
    assert team.queue()["spec"].get("stopPolicy") == "None"
    assert "kaiwo.ai/held" not in team.queue()["metadata"].get("labels", {})


def _holds_and_nothing_else(plane: ControlPlane, team: Team) -> None:
    """Whoever has its token: queues of others stay as they are."""
    stolen = Api(Path(plane.kubeconfig_for(ACCOUNT, "kopt-system")))
    changes = {"spec": {"fairSharing": {"weight": "5"}}}, {"spec": {"stopPolicy": "HoldAndDrain"}}
    for change, message in zip(changes, ("only what a hold changes", "only with the mark of a hold"), strict=True):
        with pytest.raises(Refused, match=message):
            stolen.patch(*LOCAL_QUEUE, change, team.space)
    stolen.http.close()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"target": {"namespace": "a"}, "limit": {}}, "give gpuHours or an amount"),
        ({"target": {"namespace": "a"}, "limit": {"gpuHours": 0}}, "must be above 0"),
        ({"target": {}, "limit": {"gpuHours": 1}}, "give a namespace, a clusterQueue or labels"),
        ({"target": {"labels": {"team": "a"}}, "limit": {"gpuHours": 1}, "action": "Hold"}, "names a namespace"),
        ({"target": {"localQueue": "a", "clusterQueue": "b"}, "limit": {"amount": 5}}, "needs its namespace"),
        (
            {"target": {"namespace": "a"}, "limit": {"amount": "5.5"}, "softPercent": 90, "hardPercent": 80},
            "softPercent is above hardPercent",
        ),
    ],
)
@pytest.mark.cluster
def test_budgets_that_cannot_be_meant_are_refused(
    control_plane: ControlPlane, install: Callable[..., None], spec: dict[str, Any], message: str
) -> None:
    install(VALUES)
    document = {"apiVersion": "kaiwo.ai/v1alpha1", "kind": "KaiwoBudget", "metadata": {"name": "x"}, "spec": spec}
    with pytest.raises(Refused, match=message):
        control_plane.api.create(document)
