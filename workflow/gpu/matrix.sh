#!/usr/bin/env bash
# The matrix at smoke scale on real GPUs: the P/D cluster and the unified workers start once, share the GPUs, and serve many short replays.
#
#   bash workflow/gpu/matrix.sh          from the root of the checkout; again in a later call on the same host: it goes on where it stopped
#
# OUT (default ./gpu-results) receives runs.tar.gz.* (the run directories made in this call, cut into pieces), servers.tar.gz (whole logs) and session.log.
#   SESSION_S  seconds after which nothing runs any more but the servers (default 570)
#   LAST       1: provoke failures at the end (workflow/gpu/provoke.sh) and stop the servers; 0: leave them for the next call
#   PLAN       experiment:replicate ..., in order; those already made are left out
#   ANEW       1: P and D start anew, with what is given now (DECODE_ARGUMENTS, PLUGIN, ...)
#   TURNS      1: before the runs, measure what a turn costs (workflow/gpu/turns.sh)
#   MATRIX     file of config/experiments; SHAPE: its number of P's, D's and unified workers; RUN_S: longest time of one run with all around it
#   BACKEND    another way of KV than the cluster file's
# Another kind of machine: LAUNCHER, ROUTER, MODELS, BIG, SMALL, LOAD_FORMAT, COMMON_ARGUMENTS, PREFILL_ARGUMENTS, DECODE_ARGUMENTS.
set -u
OUT=${OUT:-gpu-results}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
LOGS=/tmp/matrix RUNS=/tmp/matrix-runs    # the experiments' sglang.external.logs
mkdir -p "$RUNS"
exec > >(tee "$OUT/session.log") 2>&1
export TZ=UTC
. workflow/gpu/setup.sh || exit 1
. workflow/gpu/servers.sh
. workflow/gpu/lasting.sh
SESSION_END=$SESSION_S    # counted from the start of this script: setting up takes its share

BIG=${BIG:-q30a3} SMALL=${SMALL:-q06} LAST=${LAST:-0} TURNS=${TURNS:-0} RUN_S=${RUN_S:-86} PROVOKE_S=${PROVOKE_S:-165}
if [ "$GPUS" -ge 4 ]; then MATRIX=${MATRIX:-gpu-smoke} SHAPE=${SHAPE:-1 3 4}; else MATRIX=${MATRIX:-gpu-smoke-2} SHAPE=${SHAPE:-1 1 2}; fi
PLAN=${PLAN:-E0:1 E6:1 E1:1 E0:2 E6:2 E1:2 E0:3 E6:3 E1:3 E7:1 E8:1 E2:1 E3:1 E7:2 E8:2 E2:2 E3:2}
read -ra COMMON <<< "${COMMON_ARGUMENTS---mem-fraction-static 0.97 --cuda-graph-max-bs-decode 32 --chunked-prefill-size 8192 --max-running-requests 40}"
read -ra PREFILL <<< "${PREFILL_ARGUMENTS---cuda-graph-bs-prefill 64 128 256 512 1024 2048 4096 8192}"
read -ra DECODE <<< "${DECODE_ARGUMENTS---disable-prefill-cuda-graph}"
read -ra ROUTER <<< "${ROUTER:-python3 -m sglang_router.launch_router}"
read -r P D W <<< "$SHAPE"
ENVIRONMENT=() EXTRA=()

rm -rf "$LOGS/config" && mkdir -p "$LOGS" && cp -r config "$LOGS/config"
CONFIG=$LOGS/config
cluster_of() { sed -n "/^  $1:/,/cluster:/s/^    cluster: *//p" "$CONFIG/experiments/$MATRIX.yaml"; }    # DESIGN
KVC=$CONFIG/clusters/$(cluster_of kvc).yaml
POOL=$(sed -n 's/^kv_pool_tokens: *//p' "$KVC")
[ -z "${BACKEND:-}" ] || sed -i "s/^transfer_backend: .*/transfer_backend: $BACKEND/" "$KVC"
BACKEND=$(sed -n 's/^transfer_backend: *//p' "$KVC")
KVC_NAMES=(prefill-0) DP_NAMES=() KVC_PORTS=(21000) DP_PORTS=()
for ((k = 0; k < D; k++)); do KVC_NAMES+=("decode-$k") KVC_PORTS+=($((22000 + k))); done
for ((k = 0; k < W; k++)); do DP_NAMES+=("worker-$k") DP_PORTS+=($((23000 + k))); done

id_of() { # NAME: an experiment of the matrix, whole or without what stands behind its @; the first that fits
    python3 - "$CONFIG" "$MATRIX" "$1" << 'PY'
import sys
from pathlib import Path
from apd_replay import configuration
found = configuration.load(Path(sys.argv[1]) / "config.yaml", sys.argv[2]).experiments
print(next((e for e in found if sys.argv[3] in (e, e.split("@")[0])), ""))
PY
}
is_dp() { grep -q "^  ${1%%@*}: {design: dp" "$CONFIG/experiments/$MATRIX.yaml"; }

start_kvc() { pair_lasting "$LOGS" "$BIG" 0 $((GPUS > 1 ? 1 : 0)) 21000 22000 "$D" "$BACKEND" "$POOL"; }

start_dp() {
    local k
    ENVIRONMENT=(SGLANG_PLUGINS=none)
    for ((k = 0; k < W; k++)); do
        serve_lasting "$LOGS" "worker-$k" "$BIG" $((GPUS > 1 ? k : 0)) $((23000 + k)) "${COMMON[@]}" "${PREFILL[@]}" --max-total-tokens "$POOL"
    done
}

start_router() { # a fresh one for each run: it remembers where prompts went
    stop_lasting "$LOGS" router
    lasting "$LOGS" router "${ROUTER[@]}" --host 127.0.0.1 --port 24000 --prometheus-host 127.0.0.1 --prometheus-port 24090 --policy cache_aware \
        --worker-startup-check-interval 1 --worker-urls "${DP_PORTS[@]/#/http://127.0.0.1:}"
}

router_ready() {
    local until=$((SECONDS + 40))
    while [ "$SECONDS" -lt "$until" ]; do
        [ "$(fetch http://127.0.0.1:24000/workers | grep -o '"is_healthy": *true' | wc -l)" -ge "$W" ] && return 0
        sleep 1
    done
    echo "the router does not see its $W workers"
    return 1
}

show() { # NAMES...: why they are not there
    local name
    for name in "$@"; do echo "--- $name"; tail -n 15 "$LOGS/$name.log"; done
}

up() { # kvc | dp: start what does not run, wait for it
    local names=("${KVC_NAMES[@]}") ports=("${KVC_PORTS[@]}") name
    if [ "$1" = dp ]; then names=("${DP_NAMES[@]}") ports=("${DP_PORTS[@]}"); fi
    for name in "${names[@]}"; do
        lives "$LOGS" "$name" && continue
        stop_lasting "$LOGS" "${names[@]}"
        "start_$1"
        break
    done
}

ready() { # kvc | dp
    local names=("${KVC_NAMES[@]}") ports=("${KVC_PORTS[@]}")
    if [ "$1" = dp ]; then names=("${DP_NAMES[@]}") ports=("${DP_PORTS[@]}"); fi
    wait_healthy 260 "${ports[@]}" || { show "${names[@]}"; return 1; }
}

replay_one() { # EXPERIMENT:REPLICATE: 0 if the run is whole
    local name=${1%:*} n=${1#*:} dir=$RUNS/${1/:/-r} limit=$RUN_S
    is_dp "$name" && { lives "$LOGS" router || start_router; router_ready || return 1; }
    rm -rf "$dir"
    echo "== $1 with $(left) s left"
    step timeout -k 5 "$(left $((limit + 30)))" python3 -m apd_replay replay "$(id_of "$name")" --replicate "$n" --config "$CONFIG/config.yaml" --matrix "$MATRIX" --out "$dir" || return 1
    python3 - "$dir" << 'PY'
import json, sys
run = json.load(open(sys.argv[1] + "/run.json"))
rows = [json.loads(line) for line in open(sys.argv[1] + "/requests.jsonl")]
count = lambda key: {v: sum(r[key] == v for r in rows) for v in sorted({str(r[key]) for r in rows if r[key] is not None})}
print(f"   {run['status']} after {run['duration_s']:.1f} s: {len(rows)} requests, {count('status')} {count('path')} {count('error_kind')}", flush=True)
PY
}

links_whole() { # RUN: no P of it has given a link up for good; a latch would outlive the run
    ! grep -qaE "Session [^ ]+ failed" "$RUNS/${1/:/-r}"/logs/prefill-*.log 2> /dev/null
}

finish() { # whatever is whole, and the rest for whoever looks for a cause
    local made=() run
    for run in "$RUNS"/*; do [ -f "$run/.packed" ] || [ ! -d "$run" ] || made+=("$(basename "$run")"); done
    stop_all
    if [ "$LAST" = 1 ]; then stop_lasting "$LOGS" router "${KVC_NAMES[@]}" "${DP_NAMES[@]}"; fi
    [ ${#made[@]} -eq 0 ] || { tar cz -C "$RUNS" --exclude .packed "${made[@]}" | split -b 15000000 -a 1 -d - "$OUT/runs.tar.gz."; for run in "${made[@]}"; do touch "$RUNS/$run/.packed"; done; }
    (cd "$LOGS" && tar cz --exclude config --exclude '*.jsonl' . > "$OUT/servers.tar.gz")
    [ "$(stat -c %s "$OUT/servers.tar.gz")" -lt 15500000 ] || rm "$OUT/servers.tar.gz"
    nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv 2> /dev/null
    ls -la "$OUT"
    echo "ended with $(left) s left; whole runs: $(cd "$RUNS" && ls -d */run.json 2> /dev/null | wc -l) $(cd "$RUNS" && ls */run.json 2> /dev/null | tr '\n' ' ')"
}
trap finish EXIT

echo "$GPUS GPUs, $(nproc) cores, $(left) s, $MATRIX, $P P + $D D + $W unified, pool $POOL, $BACKEND"
if [ "${ANEW:-0}" = 1 ]; then stop_lasting "$LOGS" "${KVC_NAMES[@]}"; fi
up kvc
up dp
KVC_UP=1 DP_UP=1
ready kvc || KVC_UP=0
ready dp || DP_UP=0
grep -ahoE "max_total_num_tokens=[0-9]+|KV Cache is allocated.*" "$LOGS"/*.log | sort | uniq -c
nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv 2> /dev/null

if [ "$TURNS" = 1 ]; then . workflow/gpu/turns.sh; fi
TODO=()
for item in $PLAN; do [ -f "$RUNS/${item/:/-r}/run.json" ] || TODO+=("$item"); done
RESERVE=$((LAST == 1 ? PROVOKE_S : 12))
for k in "${!TODO[@]}"; do
    item=${TODO[$k]} following=${TODO[$((k + 1))]:-}
    [ "$(left)" -gt $((RUN_S + RESERVE)) ] || break
    if is_dp "${item%:*}"; then [ "$DP_UP" = 1 ] || continue; else [ "$KVC_UP" = 1 ] || continue; fi
    if [ -n "$following" ] && is_dp "${following%:*}" && ! is_dp "${item%:*}"; then start_router; fi
    if ! replay_one "$item" || ! links_whole "$item"; then
        is_dp "${item%:*}" && { start_router; continue; }
        echo "the P/D cluster starts anew"
        stop_lasting "$LOGS" "${KVC_NAMES[@]}"
        [ "$(left)" -gt $((2 * RUN_S + RESERVE)) ] || { KVC_UP=0; continue; }
        up kvc
        ready kvc || KVC_UP=0
    fi
done
if [ "$LAST" = 1 ]; then
    stop_lasting "$LOGS" router "${KVC_NAMES[@]}" "${DP_NAMES[@]}"
    . workflow/gpu/provoke.sh
fi
