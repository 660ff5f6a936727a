"""``kopt rightsize``: CPU and memory of running GPU workloads, changed in place and watched."""
