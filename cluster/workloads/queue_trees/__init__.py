"""Compiled trees of queues in a cluster: server-side apply of one, and queues that are there already as a tree."""
