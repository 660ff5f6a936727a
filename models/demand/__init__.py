"""Inference demand: quantiles of the next minutes to hours for each service.

A history becomes feature rows (``features.demand``); a global model (LightGBM and a small network, ``global_model``)
answers for any service; per-series online learners (``online``) correct it as observations arrive and keep its
quantiles calibrated. ``predictor.DemandPredictor`` joins them and is what everyone else calls.
"""
