"""Our own custom resources, a module for each kind."""
