"""The sizing controller as a process before a real control plane, and one Job whose state overflows."""

from collections.abc import Callable
from typing import Any

import pytest
from controlplane.plane import ControlPlane
from controlplane.processes import Server, wait_for
from sizing_controller.conftest import job, plane, space, start_controller

__all__ = ["plane", "space", "start_controller"]
pytestmark = [pytest.mark.cluster, pytest.mark.slow]
BATCH = ("batch/v1", "Job")
STATE = '{"phase":"sized","since_s":1,"asked":{},"tries":1e999,"granted_bytes":1,"need_bytes":1,"seen":[],"type":""}'


def test_a_state_that_overflows_costs_no_other_job_its_dry_run(
    plane: ControlPlane, space: str, start_controller: Callable[..., Server]
) -> None:
    hostile = job("a-hostile", space, "sleep 600", annotations={"kaiwo.ai/sizing-state": STATE}, suspend=True)
    plane.api.create(hostile)
    server = start_controller()
    plane.api.create(job("b-ordinary", space, "sleep 600"))

    def holder(name: str) -> str:
        found: dict[str, Any] = plane.api.get(*BATCH, name, space)
        return str(found["metadata"].get("labels", {}).get("kaiwo.ai/held", ""))

    server.wait_until(lambda: holder("b-ordinary") == "profiling")

    def told() -> set[str]:
        events = plane.api.list("events.k8s.io/v1", "Event", space)
        return {one["reason"] for one in events if one["regarding"]["name"] == "a-hostile" and one["type"] == "Warning"}

    wait_for(lambda: "InvalidAnnotation" in told(), what="the hostile Job is told")
    assert holder("a-hostile") == ""
