"""Compliance policies: compiled to the API server's own policies, and judged offline by the very same expressions.

In: policies as declared (``core.workload.compliance``), objects as the API server stored them. Out: admission policies
with their bindings, and judgements. Nothing here reads a cluster or a clock.
"""
