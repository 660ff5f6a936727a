"""The pairwise benchmark controller (K7): measures what pairs of nodes reach together, and names sick nodes.

In: PairwiseBenchmarks, nodes, GPU pods, and the logs of its own tests. Out: a Job of two pods per pair, NodeBandwidths,
events, and the pairs told to the prediction endpoint. What was measured, what runs and what it cost stands on objects,
so it may be killed between any two calls. Deciding is ``policies.pairwise``'.
"""
