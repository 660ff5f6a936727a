"""Kaiwo Optimizer: the machine-learning brain beside a GPU cluster's queueing system.

``kopt`` predicts what jobs and services will need and turns predictions into decisions.
Importing this package loads none of the heavy libraries; each sub-package says in its own
docstring what lives in it, what comes in and what goes out. ``kopt.forecast(frame)``,
``kopt.estimate(script)``, ``kopt.bandwidth(topology, gpus)`` and ``kopt.classify_log(lines)`` load
them when they are first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kopt.core.hardware.bandwidth import BandwidthEstimate
    from kopt.core.workload.sizing import SizingEstimate
    from kopt.sdk.forecast import Forecast, forecast
    from kopt.sdk.bandwidth import bandwidth
    from kopt.sdk.classify_log import ClassifiedLog, classify_log
    from kopt.models.sizing.estimate import estimate

    __version__: str

__all__ = [
    "BandwidthEstimate", "ClassifiedLog", "Forecast", "SizingEstimate", "__version__", "bandwidth", "classify_log",
    "estimate", "forecast",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Loads the Python interface on first use (PEP 562); it finds models where this machine's settings say."""
    if name == "__version__":
        # A fifth of what ``kopt --help`` takes to start.
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("kaiwo-optimizer")
        except PackageNotFoundError:  # a source tree that was never installed
            return "0+unknown"
    if name == "forecast":
        from functools import partial

        from kopt.sdk import forecast as api
        from kopt.serving.runtime.environment import load_settings

        return partial(api.forecast, settings=load_settings())
    if name == "estimate":
        from functools import partial

        from kopt.models.sizing import estimate as sizing
        from kopt.serving.runtime.environment import load_settings

        return partial(sizing.estimate, settings=load_settings())
    if name == "bandwidth":
        from functools import partial

        from kopt.sdk import bandwidth as ask
        from kopt.serving.runtime.environment import load_settings

        return partial(ask.bandwidth, settings=load_settings())
    if name == "BandwidthEstimate":
        from kopt.core.hardware.bandwidth import BandwidthEstimate

        return BandwidthEstimate
    if name == "classify_log":
        from functools import partial

        from kopt.sdk import classify_log as logs
        from kopt.serving.runtime.environment import load_settings

        return partial(logs.classify_log, settings=load_settings())
    if name == "ClassifiedLog":
        from kopt.sdk.classify_log import ClassifiedLog

        return ClassifiedLog
    if name == "SizingEstimate":
        from kopt.core.workload.sizing import SizingEstimate

        return SizingEstimate
    if name == "Forecast":
        from kopt.sdk.forecast import Forecast

        return Forecast
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
