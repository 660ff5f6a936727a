#!/bin/sh
# Installs the wheel in /wheel with the extras named into the virtual environment /opt/kopt, from the lock file alone.
set -eu
prefix=${KOPT_PREFIX:-/opt/kopt}
lock=$(mktemp)
python "$(dirname "$0")/locked.py" "$@" >"$lock"
python -m venv --without-pip "$prefix"
pip --python "$prefix/bin/python" install --no-cache-dir --require-hashes --no-deps -r "$lock"
pip --python "$prefix/bin/python" install --no-cache-dir --no-deps --no-index "${KOPT_WHEEL:-/wheel}"/*.whl
rm "$lock"
