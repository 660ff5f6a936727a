"""Behind ``/v1/checkpoint``: the service and what it keeps."""
