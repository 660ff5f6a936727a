"""Decisions about a workload's GPU requests: dry runs, and requests that fit its need."""
