"""The sizing controller (K3): holds GPU Jobs of unknown size, has them profiled, writes what they need, lets them go.

In: Jobs, their pods, nodes, and the endpoint's answers. Out: held and released Jobs, profiling Jobs, SizingProfiles.
Everything that it must remember stands on the objects, written with the change that it belongs to, so that it may be
killed between any two calls. Deciding is ``policies.sizing.profiling``'s.
"""
