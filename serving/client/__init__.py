"""The public interface for other folders: clients of the endpoint and fallbacks. No Ray, no torch, no pandas.

Other programs use ``from kopt.serving.client import PredictionClient``. Names are loaded when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kopt.serving.client.blocking import PredictionClient
    from kopt.serving.client.client import AsyncPredictionClient
    from kopt.serving.client.fallback_answer import fallback_answer
    from kopt.serving.client.transport import EndpointFailure, RequestRefused

__all__ = ["AsyncPredictionClient", "EndpointFailure", "PredictionClient", "RequestRefused", "fallback_answer"]
_MODULES = {
    "AsyncPredictionClient": "client",
    "EndpointFailure": "transport",
    "PredictionClient": "blocking",
    "RequestRefused": "transport",
    "fallback_answer": "fallback_answer",
}


def __getattr__(name: str) -> Any:
    """Lazy imports (PEP 562): code that needs only a fallback does not load an HTTP client."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
