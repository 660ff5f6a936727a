"""Shared types of the product: units, Gpu, Node, Prediction, Decision, Reason, workloads, queues and staged data.

Frozen dataclasses on the standard library only. GPU quantities are integers (milli-GPU, bytes).
"""
