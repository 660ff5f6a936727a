"""What a Lease says of its holder."""

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import count, text
from kopt.core.times import seconds

CLOCK_SKEW_S = 5.0
"""Between this node's clock and that of a Lease's holder."""


def lease_until(document: Object) -> float:
    """Unix time until which a Lease shows that its holder runs; minus infinity without a holder."""
    renewed = text(document, "spec", "renewTime")
    if not text(document, "spec", "holderIdentity") or not renewed:
        return float("-inf")
    at_s = seconds(renewed)
    return at_s + count(document, "spec", "leaseDurationSeconds", default=15) + CLOCK_SKEW_S
