"""The page of models and their health."""
