"""Pods of a trace placed one after another by a policy, on the nodes of a trace."""
