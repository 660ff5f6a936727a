"""Which node, and which of its GPUs, a pod should get.

In: ``state.FleetState`` (arrays that the caller holds) and a ``core.placement.PodRequest``. Out: a ``choose.Choice``
with its scores and what spoke against the other nodes. The scheduler extender and the simulator call the same code.
"""
