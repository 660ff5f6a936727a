"""Data that is copied near GPUs: manifests and StagedData. Values only, standard library only."""
