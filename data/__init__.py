"""Cluster telemetry and public traces become tidy, typed tables here.

In: Parquet, CSV, a Prometheus server, public traces in their own formats.
Out: frozen tables (``data.demand.table.DemandSeries``) that have passed validation.
No data set lives in this folder, only code that reads one.
"""
