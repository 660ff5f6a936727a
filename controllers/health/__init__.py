"""The health controller (K17): keeps one NodeHealth per node with GPUs, and new pods off those that are at fault.

In: Nodes, pods, NodeTopologies, ResourceSlices, and exporters' series from Prometheus. Out: NodeHealth objects that the
extender weighs; in mode enforce a condition and a taint on Nodes, or DeviceTaintRules.
"""
