"""Grafana dashboards as data: which expressions of Prometheus answer which question, with units and descriptions."""
