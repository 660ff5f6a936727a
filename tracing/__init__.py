"""Abstract execution: a script runs confined, on a fake GPU, and its memory events are replayed through an allocator.

Comes in: a command and a GPU of the catalogue. Goes out: a trace and its timeline. No predictor, no network, no
cluster; what a stranger wrote runs in the sandbox only.
"""
