"""Which GPU and memory slots a claim for a MIG instance gets: the webhook's part of dynamic resource allocation.

In: ResourceSlices, ResourceClaims, DeviceClasses, nodes, and the pod of a claim that is being created. Out: in mode
enforce, an alternative before what the claim was written with. Claims that exist are never changed, as nobody can.
"""
