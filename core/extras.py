"""Extras of the package: what a plain installation does not bring, and which commands need it."""

from dataclasses import dataclass

PROJECT = "kaiwo-optimizer"


@dataclass(frozen=True)
class Extra:
    """``modules`` tell whether it is installed; ``commands`` cannot run without it."""

    name: str
    commands: tuple[str, ...]
    modules: tuple[str, ...]

    @property
    def install(self) -> str:
        return f"pip install '{PROJECT}[{self.name}]'"


_DATA = ("pandas", "pyarrow", "prometheus_api_client")
_SERVING = (
    "ray",
    "mlflow",
    "feast",
    "lightgbm",
    "fastapi",
    "jinja2",
    "matplotlib",
    "plotly",
    "psutil",
    "starlette",
    "uvicorn",
)
EXTRAS = (
    Extra("data", ("simulate lending", "simulate preemption"), _DATA),
    Extra("serving", ("up", "mlflow", "demand"), (*_DATA, *_SERVING)),
    Extra("training", ("train",), (*_DATA, *_SERVING, "torch", "statsforecast", "sklearn", "optuna")),
    Extra("controllers", ("controller", "webhook", "extender"), ("opentelemetry", "uvloop")),
    Extra("agents", ("agent",), ("inotify_simple", "pynvml")),
    Extra("staging", ("stage",), ("obstore",)),
    Extra("mcp", ("mcp",), ("mcp", "mcp_types")),
    Extra("compliance", ("policies report",), ("cel",)),
)
"""A module that several bring is asked of the first of them, unless the command is known."""


def extra_for(module: str, command: str = "") -> Extra | None:
    """The extra that brings a module: that of the command where it is one, so that one installation is enough."""
    able = [extra for extra in EXTRAS if module in extra.modules]
    spaced = f"{command} "
    return next((extra for extra in able if any(spaced.startswith(f"{name} ") for name in extra.commands)), None) or (
        able[0] if able else None
    )


def missing(error: ModuleNotFoundError, command: str = "") -> str | None:
    """What to install where a module is missing; None for a module that no extra brings."""
    module = (error.name or "").partition(".")[0]
    extra = extra_for(module, command)
    return None if extra is None else f"this needs the package {error.name!r}, which is not installed: {extra.install}"
