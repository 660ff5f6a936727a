"""The only door in: clients of the prediction endpoint and their fallbacks. No Ray, no torch, no pandas.

Programs of others ask by ``from kopt.serving.client import PredictionClient``. Names are loaded when first used.
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
    """Late (PEP 562): whoever needs a fallback alone does not pay for an HTTP client."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kopt.serving.client import client

    return getattr(client, name)
