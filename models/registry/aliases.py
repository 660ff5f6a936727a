"""The names by which a version of a model is asked for; importing them loads no registry."""

CHAMPION, CHALLENGER = "champion", "challenger"
SHIPPED = "shipped"
"""The model in the package."""
