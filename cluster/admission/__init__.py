"""The AdmissionReview protocol."""
