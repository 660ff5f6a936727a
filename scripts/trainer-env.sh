#!/usr/bin/env bash
# Prints the interpreter of the virtual environment that tests/sizing/environments/$1.txt describes. It is built on first
# use (gigabytes: torch comes with its CUDA libraries) and kept outside the project, one folder per content of the file.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?usage: scripts/trainer-env.sh NAME}
requirements=tests/sizing/environments/$name.txt
[ -f "$requirements" ] || { echo "no such environment: $requirements" >&2; exit 1; }
version=$(sed -n 's/^# python //p' "$requirements")
root=${XDG_CACHE_HOME:-$HOME/.cache}/kopt/trainers
folder=$root/$name-$(sha256sum <"$requirements" | cut -c1-16)
python=$folder/bin/python
mkdir -p "$root"
# Two test runs may ask at once: the second waits for the first.
exec 9>"$folder.lock"
flock 9
if [ ! -e "$folder/.ready" ]; then
  uv=$(command -v uv || echo .venv/bin/uv)
  rm -rf "$folder"
  interpreter=$version
  for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
    if "$candidate" -c '' 2>/dev/null; then interpreter=$(command -v "$candidate"); break; fi
  done
  "$uv" venv -q --python "$interpreter" "$folder" >&2
  # uv's own cache has torch and its libraries from `make setup`: they become links, and are not fetched again.
  "$uv" pip install -q --python "$python" -r "$requirements" >&2
  touch "$folder/.ready"
fi
echo "$python"
