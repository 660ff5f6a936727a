"""Answers HorizontalPodAutoscalers with forecasts: the API ``external.metrics.k8s.io``, behind the API server.

In: the API server's requests for a metric of a namespace, and the prediction endpoint's forecasts by name. Out: the
largest demand that is forecast within a lead time, or no metric and why. Nothing is decided here, no replica leads, and
nothing is written to the cluster.
"""
