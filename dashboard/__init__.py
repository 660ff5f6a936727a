"""Web pages for people: services and forecasts, recommendations, jobs, model health.

In: answers of ``serving.client`` and the model registry. Out: HTML with plotly figures, no CDN.
"""
