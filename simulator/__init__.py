"""Replays real and synthetic traces through the same policies that run in a cluster.

In: traces, forecasts, a policy from ``policies``. Out: tables and plots of what it would have done.
"""
