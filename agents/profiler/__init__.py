"""The dry-run profiler: runs a command, samples the GPUs that its processes use, and writes what it needed.

In: a command, or recorded readings. Out: ``core.workload.profile.DryRun``. Only the standard library is needed here,
as this runs inside users' containers; NVML and amdsmi are used where they can be imported, else the vendors' tools.
"""
