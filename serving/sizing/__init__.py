"""Behind ``/v1/sizing``: the service and what it keeps."""
