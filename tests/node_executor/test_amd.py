"""AMD's partitions through a recorded ``amd-smi``: a program that prints what the tool printed, mode by mode."""

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nvml_standin.executors import NOW_S, OWN

from kopt.agents.node_executor.amd import AmdHardware
from kopt.agents.node_executor.executor import Executor, Outcome, Phase
from kopt.agents.node_executor.journal import Journal
from kopt.core.dsse import envelope_document
from kopt.core.node_plan.plan import NodePlan, signed_plan
from kopt.core.node_plan.steps import steps_between
from kopt.core.node_plan.wanted import with_layout

_COUNT = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}
# As `amd-smi static --bus --asic --partition --json` prints it (ROCm 6.4 on MI300X): partitions are GPUs of their own.
_TOOL = """#!{python}
import json, sys
from pathlib import Path
state = Path({state!r})
now = json.loads(state.read_text())
words = sys.argv[1:]
if words[0] == "static":
    gpus = []
    for at, compute in enumerate(now["compute"]):
        for part in range({count}[compute]):
            gpus.append({{
                "gpu": len(gpus),
                "asic": {{"market_name": "AMD Instinct MI300X OAM", "vendor_id": "0x1002"}},
                "bus": {{"bdf": f"0000:{{5 + 16 * at:02x}}:00.{{part}}", "max_pcie_width": "N/A"}},
                "partition": {{
                    "accelerator_partition": compute, "memory_partition": now["memory"], "partition_id": part
                }},
            }})
    print(json.dumps({{"gpu_data": gpus}}))
    sys.exit(0)
now["calls"] += 1
state.write_text(json.dumps(now))
if now["calls"] == now.get("fail_at"):
    sys.exit("AMDSMI_STATUS_BUSY - Device busy")
if "--memory-partition" in words:
    if sys.stdin.readline().strip() != "Y":
        sys.exit("Aborting memory partition change")
    mode = words[words.index("--memory-partition") + 1]
    if mode != "NPS1" and set(now["compute"]) != {{"CPX"}}:
        sys.exit("AMDSMI_STATUS_INVAL - Invalid parameters")
    now["memory"] = mode
else:
    at = (int(words[words.index("--gpu") + 1].split(":")[1], 16) - 5) // 16
    now["compute"][at] = words[words.index("--compute-partition") + 1]
state.write_text(json.dumps(now))
"""


class Mi300x:
    """A node of ``gpus`` MI300X, whose modes lie in a file."""

    def __init__(self, folder: Path, gpus: int = 2) -> None:
        self.state, tools = folder / "modes", folder / "bin"
        self._folder, self.key = folder, Ed25519PrivateKey.generate()
        self.processes = folder / "proc"
        self.processes.mkdir()
        self.set(compute=["SPX"] * gpus, memory="NPS1", calls=0)
        tools.mkdir()
        tool = tools / "amd-smi"
        tool.write_text(_TOOL.format(python=sys.executable, state=str(self.state), count=json.dumps(_COUNT)))
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        self.hardware = AmdHardware(str(tools), self.processes)

    def set(self, **fields: object) -> None:
        before = json.loads(self.state.read_text()) if self.state.exists() else {}
        self.state.write_text(json.dumps(before | fields))

    def modes(self) -> tuple[list[str], str]:
        now = json.loads(self.state.read_text())
        return now["compute"], now["memory"]

    def apply(self, layout: str) -> Outcome:
        before = self.hardware.read()
        steps = steps_between(before, with_layout(before, "all", layout))
        plan = NodePlan(OWN.name, OWN.uid, 1, NOW_S, NOW_S + 60, before.digest, steps)
        document = envelope_document(signed_plan(plan, self.key))
        return self.run(lambda executor: executor.handle(document, OWN))

    def run(self, work: Callable[[Executor], Outcome]) -> Outcome:
        with Journal.alone(self._folder / "journal") as journal:
            return work(Executor(self.hardware, journal, lambda: (self.key.public_key(),), lambda: NOW_S))


@pytest.fixture
def node(tmp_path: Path) -> Mi300x:
    return Mi300x(tmp_path)


def test_a_node_goes_from_one_gpu_to_eight_partitions_and_back(node: Mi300x) -> None:
    assert node.apply("CPX/NPS4").phase is Phase.APPLIED
    assert node.modes() == (["CPX", "CPX"], "NPS4")
    before = node.hardware.read()
    assert [gpu.uuid for gpu in before.gpus] == ["0000:05:00.0", "0000:15:00.0"]
    back = with_layout(before, "all", "SPX/NPS1")
    assert str(steps_between(before, back)[0]) == "memory-partition NPS1 on every GPU"


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_mode_that_the_driver_refuses_is_rolled_back(node: Mi300x, call: int) -> None:
    node.set(fail_at=call)
    outcome = node.apply("CPX/NPS4")
    assert (outcome.phase, outcome.reason.code) == (Phase.ROLLED_BACK, "NODE_STEP_FAILED")
    assert "Device busy" in outcome.reason.message
    assert node.modes() == (["SPX", "SPX"], "NPS1")


def test_modes_that_do_not_go_together_are_the_drivers_to_refuse(node: Mi300x) -> None:
    assert node.apply("QPX/NPS4").phase is Phase.ROLLED_BACK
    assert node.modes() == (["SPX", "SPX"], "NPS1")


def test_a_process_on_any_gpu_keeps_the_node_as_it_is(node: Mi300x) -> None:
    (node.processes / "4711").mkdir()
    outcome = node.apply("CPX/NPS1")
    assert (outcome.phase, outcome.reason.code) == (Phase.REFUSED, "NODE_PLAN_IN_USE")
    assert node.modes() == (["SPX", "SPX"], "NPS1")
