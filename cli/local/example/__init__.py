"""The example cluster of ``kopt up``: a simulated one behind a read-only API server on loopback.

Pages read it through a kubeconfig, as they read any cluster; what node agents and controllers would post goes to the
endpoint through its client. Nothing here is imported by pages, endpoint or controllers. In: a recording of the
simulator. Out: objects of the cluster, and requests to the local endpoint.
"""
