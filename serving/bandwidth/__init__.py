"""Behind ``/v1/bandwidth``: the service and what it keeps."""
