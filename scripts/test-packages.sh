#!/usr/bin/env bash
# The real servers and the browser that the tests start: installed from Debian where that is permitted, named otherwise.
set -euo pipefail
PATH=$PATH:/usr/sbin
declare -A packages=([prometheus]=prometheus [promtool]=prometheus [redis-server]=redis-server [chromium]=chromium
                     [mpirun]=openmpi-bin [sshd]=openssh-server [pg_createcluster]=postgresql
                     [prometheus-alertmanager]=prometheus-alertmanager [docker-registry]=docker-registry)
missing=()
for program in "${!packages[@]}"; do
  command -v "$program" >/dev/null || missing+=("${packages[$program]}")
done
[ ${#missing[@]} -eq 0 ] && exit 0
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing for the tests: ${missing[*]}" >&2
  apt-get update -qq
  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
  echo "the tests need these Debian packages: ${missing[*]}" >&2
  echo "install them with: sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
