"""Which GPUs: the set of a node whose collectives run fastest and leaves the best rest, and the nodes for more of them.

``symmetry.py`` finds GPUs that may be swapped, ``sets.py`` chooses within a node, ``nodes.py`` across nodes.
"""
