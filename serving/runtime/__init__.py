"""How replicas are put together and run: settings, models, Ray."""
