"""Pairwise benchmarks of nodes: which pairs to measure next, when it may be done, and what the results say.

In: names, times and measurements. Out: pairs to start, whether the budget allows it, a line through timed points, and
an evaluation of pairs and nodes. Standard library only; clocks and generators are passed in.
"""
