"""``kopt demand``: forecasts, back tests and what can be lent."""
