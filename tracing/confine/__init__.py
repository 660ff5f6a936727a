"""What runs between us and a hostile script: namespaces, mounts, Landlock, seccomp, limits, and the end of all of it.

Runs as processes of their own, on the standard library alone: ``supervisor`` (makes namespaces, watches, kills),
its child ``first`` (process 1 of the PID namespace: mounts, reaps) and that one's child, which gives up every
right and becomes the command. Nothing here is imported by a server except ``settings``.
"""
