"""The web pages as a process: what they read from a cluster, a Prometheus and databases, and who logs in."""
