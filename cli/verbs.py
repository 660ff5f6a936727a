"""The verbs of ``kopt``, in the order of its help. A verb's module is imported when that verb is needed."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.main import get_group

VERBS = {
    "up": "local.up:up",
    "status": "local.up:status",
    "down": "local.up:down",
    "mlflow": "training.mlflow:mlflow",
    "off": "cluster.off:off",
    "version": "local.doctor:version",
    "doctor": "local.doctor:doctor",
    "train": "training.train:train",
    "models": "training.models:app",
    "demand": "demand.commands:app",
    "logs": "logs.commands:app",
    "estimate": "sizing.estimate:estimate",
    "recommend": "sizing.recommend:recommend",
    "explain": "sizing.explain:explain",
    "diff": "sizing.explain:diff",
    "apply": "sizing.explain:apply",
    "profile": "sizing.profile:profile",
    "topology": "topology.commands:app",
    "bandwidth": "bandwidth.commands:app",
    "runtime": "runtime.commands:app",
    "parallelism": "parallelism.commands:parallelism",
    "simulate": "simulate.commands:app",
    "stage": "staging.commands:stage",
    "features": "cluster.features:app",
    "audit": "cluster.audit:app",
    "evictions": "cluster.evictions:evictions",
    "why": "cluster.why:why",
    "mcp": "mcp.commands:mcp",
    "replicas": "cluster.queueing.replicas:replicas",
    "capacity": "cluster.queueing.capacity:app",
    "reasons": "reasons.commands:reasons",
    "alerts": "alerts.commands:app",
    "dashboards": "dashboards.commands:app",
    "queue": "cluster.queueing.queue:queue",
    "gpus": "cluster.gpus:gpus",
    "hardware": "cluster.hardware:hardware",
    "idle": "cluster.idle:idle",
    "efficiency": "cluster.efficiency:efficiency",
    "utilisation": "utilisation.commands:app",
    "fractions": "cluster.fractions:app",
    "partitions": "cluster.partitions:app",
    "rightsize": "rightsize.commands:app",
    "health": "health.commands:app",
    "reservations": "cluster.queueing.reservations:app",
    "classes": "cluster.classes:classes",
    "cost": "cost.commands:app",
    "queues": "queues.commands:app",
    "policies": "policies.commands:app",
    "nodes": "nodes.commands:app",
    "crds": "crds.commands:app",
    "webhook": "cluster.webhook:webhook",
    "extender": "cluster.extender:extender",
    "agent": "cluster.agents.commands:app",
    "controller": "cluster.controller:app",
}
"""Module in this package and name in it of each: a function or a Typer application."""
_OF_SCRIPTS = ("estimate", "recommend")


class Verbs(Mapping[str, Any]):
    """The commands by name, as click has them."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            module, _, attribute = VERBS[name].partition(":")
            self._built[name] = _command(name, getattr(import_module(f"kopt.cli.{module}"), attribute))
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


def _command(name: str, declared: Any) -> Any:
    """What typer makes of a verb."""
    app = typer.Typer(rich_markup_mode="rich")
    if isinstance(declared, typer.Typer):
        app.add_typer(declared, name=name)
    else:
        app.command(name, cls=_class(name))(declared)
    return get_group(app).commands[name]


def _class(name: str) -> Any:
    if name not in _OF_SCRIPTS:
        return None
    from kopt.cli.script_arguments import ScriptCommand

    return ScriptCommand
