"""A gang that a real KAI takes the GPUs of is one line, with whom it made room for."""

import pytest
from controlplane.kai import QUEUE_LABEL, SCHEDULER, Kai
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from .conftest import Ledger, Object, Start, job

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def queued(name: str, space: str, selector: dict[str, str], queue: str, gpus: int, pods: int, priority: str) -> Object:
    found = job(name, space, gpus, selector, pods=pods)
    found["metadata"]["labels"] = {QUEUE_LABEL: queue}
    template = found["spec"]["template"]
    template["metadata"] = {"labels": {QUEUE_LABEL: queue}}
    template["spec"] |= {"schedulerName": SCHEDULER, "priorityClassName": priority}
    return found


def test_a_gang_that_gives_way_is_one_line(
    plane: ControlPlane, ledger: Ledger, kwok: Kwok, kai: Kai, start: Start
) -> None:
    start()
    api, space = ledger.api, ledger.space
    with kwok.nodes(1, gpus=8) as nodes, kai.queue(gpus=8) as queue:
        api.create(queued("low", space, nodes.selector, queue, 4, 2, "train"))
        ledger.running("low", 2)
        api.create(queued("high", space, nodes.selector, queue, 8, 1, "build"))
        ledger.running("high")
        line = wait_for(lambda: next((one for one in ledger.lines()), None), what="a line") or {}
        spec = line["spec"]
        assert (spec["workload"]["name"], spec["system"], spec["by"]) == ("low", "KAI", "kai-scheduler")
        assert (spec["cause"], spec["for"], spec["gpus"]) == ("Preempted", f"{space}/high", 8000)
        api.delete("batch/v1", "Job", "high", space, propagationPolicy="Background")
        ledger.running("low", 2)
        ledger.phase("Resumed")
