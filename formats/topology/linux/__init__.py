"""What Linux itself says of a node's devices: ``lspci``, ``/sys``, RDMA tools."""
