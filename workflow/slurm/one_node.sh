#!/usr/bin/env bash
# A SLURM of one node, on this machine, for trying profiles/slurm: one_node.sh up | down. As root, on Debian or Ubuntu, without systemd.
#
#   apt-get install -y --no-install-recommends slurm-wlm munge
#   workflow/slurm/one_node.sh up       # eight CPUs and eight GPUs, whatever the machine has; the GPUs are terminals by another name
#
# The configuration goes to /etc/slurm, where jobs of jobs find it; one that is there already is another SLURM's, and nothing is done.
set -euo pipefail

state=/var/tmp/apd-slurm
etc=/etc/slurm
node=$(hostname -s)

down() {
    local daemon
    if [[ -f $state/slurmctld.pid ]]; then
        scancel --partition=all 2>/dev/null || true
        for _ in $(seq 100); do
            [[ $(timeout 5 squeue --noheader 2>/dev/null) ]] || break
            sleep 0.1
        done
    fi
    for daemon in slurmd slurmctld munged; do
        [[ -f $state/$daemon.pid ]] && kill "$(cat "$state/$daemon.pid")" 2>/dev/null || true
    done
    for _ in $(seq 50); do
        pgrep -F "$state/slurmctld.pid" >/dev/null 2>&1 || pgrep -F "$state/slurmd.pid" >/dev/null 2>&1 || break
        sleep 0.1
    done
    [[ $(readlink "$etc/slurm.conf") == "$state/"* ]] && rm -f "$etc/slurm.conf" "$etc/gres.conf"
    rm -rf "$state"
}

up() {
    if [[ -e $etc/slurm.conf && $(readlink "$etc/slurm.conf") != "$state/"* ]]; then
        echo "$etc/slurm.conf is there: this machine has a SLURM already" >&2
        exit 1
    fi
    down
    mkdir -p "$state"/{jobs,spool} "$etc"
    cat >"$state/slurm.conf" <<CONF
ClusterName=apd
SlurmctldHost=$node(127.0.0.1)
NodeName=$node NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000000 Gres=gpu:8
PartitionName=all Nodes=$node Default=YES MaxTime=1-0
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=500
AuthInfo=socket=$state/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$state/jobs
SlurmdSpoolDir=$state/spool
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd.pid
SlurmctldLogFile=$state/slurmctld.log
SlurmdLogFile=$state/slurmd.log
SlurmctldPort=26817
SlurmdPort=26818
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
# a container has neither cgroups nor eight CPUs nor systemd
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
# no wave of the scheduler to wait for; ended jobs stay visible to squeue
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0
MinJobAge=600
CONF
    echo "NodeName=$node Name=gpu File=/dev/tty[10-17]" >"$state/gres.conf"
    ln -sf "$state"/{slurm,gres}.conf "$etc/"
    (umask 077 && head -c 1024 /dev/urandom >"$state/munge.key")
    munged --force --key-file="$state/munge.key" --socket="$state/munge.socket" --pid-file="$state/munged.pid" \
        --log-file="$state/munged.log" --seed-file="$state/munged.seed"
    slurmctld -c
    slurmd -N "$node"
    for _ in $(seq 100); do
        [[ $(sinfo --noheader --format=%T 2>/dev/null) == idle ]] && break
        sleep 0.1
    done
    sinfo
}

case ${1:-} in
    up | down) "$1" ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
