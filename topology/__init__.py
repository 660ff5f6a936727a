"""What links GPUs, what a collective takes on these links, and which sets of GPUs are best.

A ``NodeTopology`` (``from_node.py``) or a description of hardware in words (``hardware.py``) becomes a ``Machine``
(``graph.py``); ``collective_cost.py`` says how long a collective takes on it, as the minimum over algorithms and
protocols; ``sets/`` searches for the best sets of GPUs. Pure functions: no input or output, no clock, no randomness.
"""
