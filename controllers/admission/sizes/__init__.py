"""Sizes at admission: answers of the prediction endpoint, kept by job type, and the advice written from them."""
