"""Commands of a cluster: its processes, and what they are asked."""
