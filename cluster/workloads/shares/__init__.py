"""Shares of a GPU: which executor hands them out, what each node offers, and how a pod's template asks for one.

In: objects of the API server. Out: values for ``policies.fractions`` and patches.
"""
