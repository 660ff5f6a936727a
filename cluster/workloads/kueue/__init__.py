"""Kueue's queues, cohorts and Workloads as the product reads them."""
