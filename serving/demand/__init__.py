"""Behind ``/v1/demand``: the service and what it keeps."""
