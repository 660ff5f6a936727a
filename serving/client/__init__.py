"""The public interface for other folders: clients of the endpoint and fallbacks. No Ray, no torch, no pandas.

Other programs use ``from kopt.serving.client import PredictionClient``. Names are loaded when first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kopt.serving.client.client import (
        AsyncPredictionClient,
        EndpointFailure,
        PredictionClient,
        RequestRefused,
        fallback_answer,
    )

__all__ = ["AsyncPredictionClient", "EndpointFailure", "PredictionClient", "RequestRefused", "fallback_answer"]


def __getattr__(name: str) -> Any:
    """Lazy imports (PEP 562): code that needs only a fallback does not load an HTTP client."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kopt.serving.client import client

    return getattr(client, name)
