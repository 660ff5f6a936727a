"""The NodeSelectionPolicy in force: its weights, the measured use of nodes, and its status.

In: policies as they are stored, and use from Prometheus, read between calls and never for one. Out: weights and history
of the fleet, and conditions on the policies.
"""
