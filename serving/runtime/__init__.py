"""Behind ``/v1/runtime``: the service, and the runs that it answers from."""
