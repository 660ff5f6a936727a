"""The endpoint: the application over the services of all predictors, and how it is put together and started."""
