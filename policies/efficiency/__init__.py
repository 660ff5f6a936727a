"""What GPUs of a cluster were used for, and one number for how well that goes.

In: GPUs step by step, and GPU-hours of workloads. Out: where every GPU-hour went, and the health index.
"""
