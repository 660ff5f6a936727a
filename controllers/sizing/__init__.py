"""The sizing controller (K3): holds GPU Jobs of unknown size, profiles them, writes what they need, releases them.

In: Jobs, their pods, nodes, and the endpoint's answers. Out: held and released Jobs, profiling Jobs, SizingProfiles.
All state is on the objects, written with the change that it belongs to, so that the controller may be killed between
any two calls. ``policies.sizing.profiling`` decides.
"""
