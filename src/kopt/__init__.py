"""Kaiwo Optimizer: the machine-learning brain beside a GPU cluster's queueing system.

``kopt`` predicts what jobs and services will need and turns predictions into decisions.
Importing this package loads none of the heavy libraries; each sub-package says in its own
docstring what lives in it, what comes in and what goes out. ``kopt.forecast(frame)``,
``kopt.estimate(script)``, ``kopt.bandwidth(topology, gpus)``, ``kopt.parallelism(model, …)`` and
``kopt.classify_log(lines)`` load them when they are first used; ``kopt.why(job)`` asks a cluster, ``kopt.cost()`` and
``kopt.run_cost(job)`` its pages,
``kopt.what_if(jobs, …)`` replays its jobs.
"""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kopt.controllers.overview.asking import why
    from kopt.controllers.overview.job_answer import JobAnswer
    from kopt.core.hardware.bandwidth import BandwidthEstimate
    from kopt.core.workload.gpu_count import GpuCountAdvice
    from kopt.core.workload.sizing import SizingEstimate
    from kopt.core.workload.split import ScalingCurve, SplitAdvice
    from kopt.sdk.forecast import Forecast, forecast
    from kopt.sdk.bandwidth import bandwidth
    from kopt.sdk.classify_log import ClassifiedLog, classify_log
    from kopt.models.sizing.estimate import estimate
    from kopt.policies.cost.report import CostReport
    from kopt.policies.cost.run import RunCost
    from kopt.sdk.cost import cost, run_cost
    from kopt.sdk.models import load_model
    from kopt.sdk.run_time import run_time
    from kopt.sdk.parallelism import parallelism, scaling
    from kopt.sdk.useful_gpus import useful_gpus
    from kopt.simulator.what_if.answer import WhatIf
    from kopt.simulator.what_if.asking import what_if

    __version__: str

__all__ = [
    "BandwidthEstimate", "ClassifiedLog", "CostReport", "Forecast", "GpuCountAdvice", "JobAnswer", "RunCost", "ScalingCurve", "SizingEstimate", "SplitAdvice", "WhatIf",
    "__version__", "bandwidth", "classify_log", "cost", "estimate", "forecast", "load_model", "parallelism", "run_cost", "run_time",
    "scaling", "useful_gpus", "what_if", "why",
]  # fmt: skip


_FUNCTIONS = {
    "bandwidth": "kopt.sdk.bandwidth",
    "classify_log": "kopt.sdk.classify_log",
    "cost": "kopt.sdk.cost",
    "estimate": "kopt.models.sizing.estimate",
    "forecast": "kopt.sdk.forecast",
    "load_model": "kopt.sdk.models",
    "run_cost": "kopt.sdk.cost",
    "run_time": "kopt.sdk.run_time",
    "parallelism": "kopt.sdk.parallelism",
    "scaling": "kopt.sdk.parallelism",
    "useful_gpus": "kopt.sdk.useful_gpus",
    "what_if": "kopt.simulator.what_if.asking",
    "why": "kopt.controllers.overview.asking",
}
_CLASSES = {
    "BandwidthEstimate": "kopt.core.hardware.bandwidth",
    "ClassifiedLog": "kopt.sdk.classify_log",
    "CostReport": "kopt.policies.cost.report",
    "Forecast": "kopt.sdk.forecast",
    "GpuCountAdvice": "kopt.core.workload.gpu_count",
    "JobAnswer": "kopt.controllers.overview.job_answer",
    "RunCost": "kopt.policies.cost.run",
    "ScalingCurve": "kopt.core.workload.split",
    "SizingEstimate": "kopt.core.workload.sizing",
    "SplitAdvice": "kopt.core.workload.split",
    "WhatIf": "kopt.simulator.what_if.answer",
}


def __getattr__(name: str) -> Any:
    """Loads the Python interface on first use (PEP 562); it finds models where this machine's settings say."""
    if name == "__version__":
        # A fifth of what ``kopt --help`` takes to start.
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("kaiwo-optimizer")
        except PackageNotFoundError:  # a source tree that was never installed
            return "0+unknown"
    if name in _FUNCTIONS or name in _CLASSES:
        from importlib import import_module

        with _clear_about_extras(name):
            value = getattr(import_module(_FUNCTIONS.get(name) or _CLASSES[name]), name)
        return _with_settings(value) if name in _FUNCTIONS else value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _with_settings(function: "Callable[..., Any]") -> "Callable[..., Any]":
    """The function with this machine's settings, unless it is given others."""
    from functools import wraps

    from kopt.serving.base.environment import load_settings

    settings = load_settings()

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        with _clear_about_extras(function.__name__):
            return function(*args, **{"settings": settings} | options)

    return call


@contextmanager
def _clear_about_extras(name: str) -> "Iterator[None]":
    """Says what to install where a package is missing that a plain installation does not bring."""
    try:
        yield
    except ModuleNotFoundError as error:
        from kopt.core.extras import missing

        sentence = missing(error, "demand" if name == "forecast" else "")
        if sentence is None:
            raise
        raise ModuleNotFoundError(f"kopt.{name}: {sentence}", name=error.name, path=error.path) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
