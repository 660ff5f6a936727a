"""Inference demand: typed series and the loaders that make them.

In: Parquet, CSV, Prometheus, public traces, or a generator. Out: ``table.DemandSeries``.
"""
