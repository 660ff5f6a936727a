"""Which node, and which of its GPUs, a pod should get.

In: ``state.FleetState`` (arrays that the caller keeps) and a ``core.scheduling.placement.PodRequest``. Out: a
``choose.Choice`` with its scores and the reasons against other nodes. The scheduler extender and the simulator call the
same code.
"""
