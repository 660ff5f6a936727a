"""Brings live demand to the prediction endpoint: measured by Prometheus, pushed by name, answered by name.

In: ``LendingPool`` objects and a services.toml, which name services and where their demand is measured; answers of a
Prometheus server. Out: complete buckets, pushed to ``PUT /v1/demand/SERVICE``. Nothing is written to the cluster but
the Lease, and nothing is decided here.
"""
