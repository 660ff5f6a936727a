"""Kaiwo Optimizer: the machine-learning brain beside a GPU cluster's queueing system.

``kopt`` predicts what jobs and services will need and turns predictions into decisions.
Importing this package loads none of the heavy libraries; each sub-package says in its own
docstring what lives in it, what comes in and what goes out.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("kaiwo-optimizer")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
