"""Behind ``/v1/bandwidth/pairs``: the service and what it keeps."""
