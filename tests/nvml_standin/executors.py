"""A node whose GPUs are the stand-in's, people who sign plans for it, and executors that may be killed."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nvml_standin.devices import Devices

from kopt.agents.node_executor.executor import Executor, Outcome, OwnNode
from kopt.agents.node_executor.journal import Journal
from kopt.agents.node_executor.nvml import NvmlHardware
from kopt.core.dsse import envelope_document
from kopt.core.node_plan.plan import NodePlan, signed_plan
from kopt.core.node_plan.steps import MigInstanceStep, MigModeStep, Step, Verb

OWN = OwnNode("gpu-7", "uid-7")
NOW_S = 1_800_000_000.0
DIED = "killed"


class Node:
    """``key`` signs; the executor trusts it alone."""

    def __init__(self, folder: Path, devices: Devices, nvml: Any) -> None:
        self.journal, self.devices = folder / "journal", devices
        self.hardware = NvmlHardware(nvml)
        self.key = Ed25519PrivateKey.generate()
        self.now_s = NOW_S

    def plan(self, *steps: Step, **fields: Any) -> NodePlan:
        before = self.hardware.read().digest
        return replace(NodePlan(OWN.name, OWN.uid, 1, NOW_S, NOW_S + 600, before, steps), **fields)

    def signed(self, *steps: Step, **fields: Any) -> dict[str, Any]:
        return envelope_document(signed_plan(self.plan(*steps, **fields), self.key))

    def run(self, work: Callable[[Executor], Outcome | None]) -> Outcome | None:
        with Journal.alone(self.journal) as journal:
            return work(Executor(self.hardware, journal, lambda: (self.key.public_key(),), lambda: self.now_s))

    def handle(self, document: object, own: OwnNode = OWN) -> Outcome:
        outcome = self.run(lambda executor: executor.handle(document, own))
        assert outcome is not None
        return outcome

    def recover(self) -> Outcome | None:
        return self.run(lambda executor: executor.recover())

    def create(self, at: int, profile: str, start: int) -> Step:
        return MigInstanceStep(Verb.MIG_CREATE, self.devices.uuid(at), profile, start)

    def destroy(self, at: int, profile: str, start: int) -> Step:
        return MigInstanceStep(Verb.MIG_DESTROY, self.devices.uuid(at), profile, start)

    def mode(self, at: int, *, enabled: bool) -> Step:
        return MigModeStep(self.devices.uuid(at), enabled)

    def in_child(self, work: Callable[[], object]) -> str:
        """Runs it in a process of its own: ``killed``, or how it ended."""
        child = os.fork()
        if child == 0:
            try:
                work()
                os._exit(0)
            except BaseException:  # noqa: BLE001 - a test's child must not go on as a test
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return DIED
        return f"ended with {os.WEXITSTATUS(status)}"
