#!/bin/sh
# Refuses a base image that is not named by its digest.
set -eu
if printf '%s' "${1:-}" | grep -Eq '^[^[:space:]@]+@sha256:[0-9a-f]{64}$'; then
    exit 0
fi
echo "the base image ${1:-} is not named by its digest: run 'make images-lock', then build with" >&2
echo '--build-arg PYTHON_IMAGE="$(cat deploy/images/base.lock)"' >&2
exit 1
