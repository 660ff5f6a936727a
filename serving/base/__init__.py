"""What every service runs on: settings, models, threads, Ray."""
