"""``kopt rightsize``: CPU, memory and width of running GPU workloads, changed and watched."""
