"""The scheduler extender: which node a GPU pod gets, which of its GPUs, and why (K8).

In: filter, prioritize and bind calls of a kube-scheduler, and a view of nodes and pods kept by informers. Out: Bindings
that name the GPUs, events, `/explain`, metrics, traces. A call is answered from memory; only the Binding waits for the
API server. Without this process, or with a replica that does not lead, pods are bound as the scheduler would.
"""
