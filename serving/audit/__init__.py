"""The audit log of all components, in the database that the endpoint's replicas share."""
