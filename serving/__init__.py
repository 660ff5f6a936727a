"""Models become answers over HTTP (Ray Serve). ``serving.client`` is the only door in.

In: typed requests. Out: predictions with deadline, fallback and reasons.
"""
