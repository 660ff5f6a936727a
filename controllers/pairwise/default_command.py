"""What a test's container runs that names no command of its own: nccl-tests by Open MPI over ssh.

The image has to bring sh, mpirun, ssh, sshd, ssh-keygen and the ``*_perf`` programs (nccl-tests, rccl-tests), as those
of NVIDIA's and AMD's MPI examples do. The key is a Secret's, so both ranks have it; ssh listens on a port that needs no
root, each pod makes a host key of its own, and nothing is written outside of a temporary folder.
"""

KEY_FOLDER = "/etc/kopt/ssh"
SCRIPT = r"""
set -eu
folder=$(mktemp -d)
cp /etc/kopt/ssh/ssh-privatekey "$folder/key"
chmod 600 "$folder/key"
ssh-keygen -y -f "$folder/key" > "$folder/authorized"
ssh-keygen -q -t ed25519 -N '' -f "$folder/host"
cat > "$folder/sshd_config" <<END
Port ${KOPT_SSH_PORT:-2222}
HostKey $folder/host
AuthorizedKeysFile $folder/authorized
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
END
cat > "$folder/config" <<END
Host *
Port ${KOPT_SSH_PORT:-2222}
IdentityFile $folder/key
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
ConnectTimeout 5
END
server=$(command -v sshd || echo /usr/sbin/sshd)
if [ "$KOPT_RANK" != 0 ]; then
  exec "$server" -D -e -f "$folder/sshd_config"
fi
"$server" -e -f "$folder/sshd_config"
printf '#!/bin/sh\nexec ssh -F %s "$@"\n' "$folder/config" > "$folder/agent"
chmod 700 "$folder/agent"
first=${KOPT_PEERS%%,*}
second=${KOPT_PEERS##*,}
until "$folder/agent" "$second" true; do sleep 1; done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 NCCL_DEBUG="${NCCL_DEBUG:-VERSION}"
variables=""
for name in $(env | sed -n 's/^\(\(NCCL\|RCCL\|UCX\|FI\|HSA\|LD_LIBRARY_PATH\|PATH\)[A-Z0-9_]*\)=.*/\1/p'); do
  variables="$variables -x $name"
done
for collective in $(echo "$KOPT_COLLECTIVES" | tr , ' '); do
  case $collective in all_to_all) collective=alltoall ;; esac
  program=$(command -v "${collective}_perf_mpi" || command -v "${collective}_perf")
  mpirun --mca plm_rsh_agent "$folder/agent" --host "$first:$KOPT_GPUS_PER_NODE,$second:$KOPT_GPUS_PER_NODE" \
    -np $((2 * KOPT_GPUS_PER_NODE)) $variables \
    "$program" -b "$KOPT_MIN_BYTES" -e "$KOPT_MAX_BYTES" -f 2 -g 1 -n "${KOPT_ITERATIONS:-20}"
  echo "# Collective test concluded: ${collective}_perf"
done
"""
