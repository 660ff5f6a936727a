"""Web pages for people: services and forecasts, recommendations, jobs, topologies, model health.

In: answers of ``serving.client``, the model registry and, handed in by cli, a cluster's nodes. Out: HTML with plotly
figures, no CDN.
"""
