"""The words of the product: units, Gpu, Node, Workload, Queue, Snapshot, Prediction, Decision, Reason.

Frozen dataclasses on the standard library only. GPU quantities are integers (milli-GPU, bytes).
"""
