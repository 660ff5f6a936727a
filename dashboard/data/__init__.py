"""What the pages show: snapshots of the endpoint, the registry and the cluster, refreshed in the background."""
