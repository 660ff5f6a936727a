"""Inference demand: typed series and the loaders that make them.

In: Parquet and CSV files (``files``), a Prometheus server (``prometheus``), public traces in their own formats
(``traces``), or a generator of synthetic services (``generator``); ``load`` tells the first and third apart.
Out: ``table.DemandSeries`` on an even grid (``grid``), validated; gaps are NaN. Every error about the data is a
``table.DemandDataError`` that names the series and the row.
"""
