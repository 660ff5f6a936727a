"""Compliance policies in a cluster: what applying them would change, the writes, and how what runs stands to them.

No process of its own: the API server enforces what `kopt policies apply` writes; the command line calls this.
"""
