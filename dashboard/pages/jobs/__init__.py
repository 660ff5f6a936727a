"""The page of jobs whose logs are followed."""
