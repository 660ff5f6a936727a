"""What every process in a cluster is made of: informers, Lease, events, retries, HTTP, signals."""
