"""How much slower a data-parallel training computes when its GPUs are spread over nodes, where no model is named.

A ring over ``n`` nodes carries 2 (n - 1) / n of the gradients over each node's network, once in a step: nothing on one
node, as much as the gradients on two, at most twice that on many. What that adds to a step is set by a measurement:
ResNet-50 on two GPUs trained 114.8 images a second within one server and 98.0 over two (Jeon et al., Analysis of
Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads, USENIX ATC 2019).
"""

OVER_TWO_NODES = 114.8 / 98.0 - 1
"""Of the time of a step."""


def slowdown(nodes: int, over_two_nodes: float = OVER_TWO_NODES) -> float:
    """A step's time over that on one node. Raises ValueError for fewer than one node."""
    if nodes < 1:
        raise ValueError(f"{nodes} nodes")
    return 1 + over_two_nodes * 2 * (nodes - 1) / nodes
