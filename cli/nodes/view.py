"""How nodes and plans are shown."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kopt.cli.output import Answer, Format, column, format_time, show
from kopt.core.node_plan.plan import NodePlan
from kopt.core.node_plan.state import MigGpu, NodeGpu
from kopt.core.units import counted

if TYPE_CHECKING:
    from kopt.cluster.objects.custom.node_plan import ReportedNode


@dataclass(frozen=True)
class NodeGpuRow:
    """A GPU; phase, reason and message are of its node's last plan."""

    node: str = column("node")
    gpu: int = column("GPU")
    model: str = column("model", drop=2)
    layout: str = column("layout")
    phase: str = column("last plan", drop=1)
    uuid: str = column("uuid", wide=True)
    sequence: int = column("sequence", wide=True)
    reason: str = column("reason", wide=True)
    message: str = column("message", wide=True)


@dataclass(frozen=True)
class StepRow:
    """A step of a plan; ``target`` is what it is done to."""

    number: int = column("step")
    verb: str = column("verb")
    target: str = column("target")


def layout_of(gpu: NodeGpu) -> str:
    """As ``--layout`` takes it."""
    if not isinstance(gpu, MigGpu):
        return f"{gpu.compute}/{gpu.memory}"
    if gpu.enabled != gpu.pending:
        return f"MIG {'on' if gpu.pending else 'off'} after a reset"
    if not gpu.enabled:
        return "off"
    return ",".join(f"{each.profile}@{each.start}" for each in gpu.instances) or "empty"


def show_status(nodes: "list[ReportedNode]", output: Format) -> None:
    rows = [
        NodeGpuRow(
            node.node, at, gpu.model, layout_of(gpu), node.phase, gpu.uuid, node.sequence, node.reason, node.message
        )
        for node in nodes
        for at, gpu in enumerate(node.state.gpus if node.state is not None else ())
    ]
    silent = [node.node for node in nodes if node.state is None]
    remarks = [f"{node.node}: {node.phase}, {node.message}." for node in nodes if node.phase not in ("", "Applied")]
    remarks += [f"No GPUs are reported of {', '.join(silent)}."] if silent else []
    show(Answer("nodes", rows, remarks=remarks, empty="no executor has reported"), output)


def show_plan(plan: NodePlan, output: Format, next_step: str) -> None:
    rows = [StepRow(number, step.verb.value, str(step).partition(" ")[2]) for number, step in enumerate(plan.steps, 1)]
    until = format_time(plan.expires_at_s)
    header = {"node": plan.node, "sequence": plan.sequence, "expires": until, "state_before": plan.state_before[:12]}
    remarks = [f"{counted(len(rows), 'step')} on {plan.node}, until {until}.", next_step]
    show(Answer("plan", rows, header=header, remarks=remarks), output)
