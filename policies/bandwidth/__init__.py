"""Bandwidth of a set of GPUs from what links them: a typed multigraph and the analytic layer over it.

A ``NodeTopology`` (``topology.py``) or a description of hardware in words (``hardware.py``) becomes a ``Machine``;
``analytic.py`` says how long a collective takes on it, as the minimum over algorithms and protocols.
"""
