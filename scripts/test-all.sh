#!/usr/bin/env bash
# All tests, in three parts at a time: those on a control plane mostly wait, the others mostly compute.
set -uo pipefail
cd "$(dirname "$0")/.."
pytest=(.venv/bin/python -P -m pytest)
longest=(tests/preemption_controller tests/reallocation tests/staging_controller tests/story)
logs=$(mktemp -d)
# What runs in the background would not hear Ctrl-C, nor would what its tests start.
env --default-signal=INT "${pytest[@]}" -m cluster "${longest[@]}" >"$logs/longest" 2>&1 &
first=$!
env --default-signal=INT "${pytest[@]}" -m cluster "${longest[@]/#/--ignore=}" >"$logs/others" 2>&1 &
second=$!
trap 'kill "$first" "$second" 2>/dev/null; rm -rf "$logs"' EXIT
"${pytest[@]}" -m "not cluster"
status=$?
show() {
  echo "Tests on a control plane, $(basename "$2"):"
  tail -n +1 -f --pid="$1" "$2"
  wait "$1" || status=1
}
show "$second" "$logs/others"
show "$first" "$logs/longest"
exit "$status"
