"""Bandwidth of collectives on a set of GPUs: the analytic layer of ``topology``, a learned residual on top of
it, intervals, and calibration on probes of the cluster itself.
"""
