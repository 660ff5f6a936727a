"""Tables become features: one transformation for training and for serving.

In: tables from ``data``. Out: feature rows, stored in and read from a Feast repository.
"""
