#!/usr/bin/env bash
# Makes the virtual environment named by $1 from requirements.lock and installs the project into it, editable.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
python=${PYTHON:-python3}
say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "Python 3.11 or newer is needed; name one with: make setup PYTHON=python3.12" >&2
  exit 1
fi
[ -x "$venv/bin/python" ] || { say "creating $venv"; "$python" -m venv "$venv"; }
if command -v uv >/dev/null; then uv=uv; else
  [ -x "$venv/bin/uv" ] || "$venv/bin/python" -m pip install -q uv
  uv=$venv/bin/uv
fi
lock=requirements.lock
if [ -n "${TORCH_BACKEND:-}" ]; then
  # Another build of torch comes first and outside the hashes: its files differ from the locked ones, and the
  # locked CUDA libraries are not wanted beside it.
  torch=$(grep -oE '^torch==[0-9.]+' "$lock")
  say "installing $torch for $TORCH_BACKEND"
  "$uv" pip install -q --python "$venv/bin/python" --torch-backend "$TORCH_BACKEND" "$torch"
  lock=$venv/rest.lock
  "$venv/bin/python" scripts/without_torch.py <requirements.lock >"$lock"
fi
say "installing the locked packages (a few hundred; minutes on a slow line)"
"$uv" pip install --python "$venv/bin/python" --require-hashes -r "$lock"
"$uv" pip install -q --python "$venv/bin/python" --no-deps -e .
say "ready: $venv/bin/kopt --help"
