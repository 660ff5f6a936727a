"""What the controllers do in the cluster: lending, evictions, staged data."""
