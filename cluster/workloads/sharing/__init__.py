"""Sharing of GPUs as a cluster shows it: nodes with the mode in force, their pods, the plugin's configurations.

In: objects of the API server. Out: values for ``policies.fractions``.
"""
