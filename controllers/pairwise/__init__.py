"""The pairwise benchmark controller (K7): measures the bandwidth between pairs of nodes, and finds degraded nodes.

In: PairwiseBenchmarks, nodes, GPU pods, and the logs of its own tests. Out: a Job of two pods per pair, NodeBandwidths,
events, and measured pairs for the prediction endpoint. All state is on objects, so that the controller may be killed
between any two calls. ``policies.pairwise`` decides.
"""
