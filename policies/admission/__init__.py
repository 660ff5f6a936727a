"""Decisions about workloads as they are created: queue, scheduler, and how far we may act on them."""
