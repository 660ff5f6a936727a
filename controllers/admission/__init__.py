"""The admission webhooks: queue labels (K1), scheduler names (K2), size recommendations (K3), trace contexts (O6).

In: AdmissionReviews from the API server, and a view of the cluster kept by informers. Out: JSON patches, warnings,
refusals. A review is answered from memory; whatever goes wrong here, the object is let through as it was written.
"""
