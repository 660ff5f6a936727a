"""Logging in to the pages, and what whoever is logged in may see.

In: requests, and an ``Authority`` that knows users and their rights (the cluster's API server). Out: pages restricted
to what their reader may list. Without an authority nobody logs in, and everything is shown: on one's own machine.
"""
