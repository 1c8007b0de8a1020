# Sourced by matrix.sh at its end: failures on purpose, with the small model, all at the same time.
#   dead-p, dead-p-nixl   a replay whose P is killed after 15 s (claim s10 and its control)
#   latch                 one pair over mooncake_tcp whose P probes failed links: a full D, retraction, a send that fails because D was stopped,
#                         the latch, recovery, a D killed with transfers on their way (provoke.py)
read -ra COMMON <<< "${SMALL_ARGUMENTS---mem-fraction-static 0.85 --cuda-graph-max-bs-decode 32 --chunked-prefill-size 8192 --max-running-requests 40 --disable-prefill-cuda-graph}"
PREFILL=() DECODE=()
read -ra DECODE <<< "${SMALL_DECODE_ARGUMENTS-}"
PROVOKED=${PROVOKED:-gpu-provoke}
CONTROL=${CONTROL-nixl}    # empty: leave the control out
SMALL_POOL=${SMALL_POOL:-50000} LATCH_POOL=${LATCH_POOL:-36000} DEATH_S=${DEATH_S:-15} PROMPT=${PROMPT:-6000}

second=$((GPUS > 1 ? 1 : 0)) third=$((GPUS > 3 ? 2 : 0)) fourth=$((GPUS > 3 ? 3 : second))
EXTRA=(SGLANG_DISAGGREGATION_WAITING_TIMEOUT=10)    # shorter than the replay: does it fire?
pair_lasting "$LOGS/dead-p" "$SMALL" 0 "$second" 25000 25001 1 mooncake_tcp "$SMALL_POOL"
[ -z "$CONTROL" ] || pair_lasting "$LOGS/dead-p-nixl" "$SMALL" 0 "$second" 26000 26001 1 "$CONTROL" "$SMALL_POOL"
EXTRA=(SGLANG_ENABLE_FAILED_SESSION_PROBE=1 MC_TRANSFER_TIMEOUT=10 SGLANG_DISAGGREGATION_WAITING_TIMEOUT=30)
pair_lasting "$LOGS/latch" "$SMALL" "$third" "$fourth" 27000 27001 1 mooncake_tcp "$LATCH_POOL"

both_up() { # FOLDER PORTS...: else show why not
    local folder=$1 log
    shift
    timeout "$(left "${PROVOKE_WAIT_S:-120}")" python3 workflow/gpu/wait_healthy.py "${PROVOKE_WAIT_S:-120}" "${@/#/http://127.0.0.1:}" && return 0
    for log in "$LOGS/$folder"/*.log; do echo "--- $log"; tail -n 8 "$log"; done
    return 1
}

kill_the_p() { # EXPERIMENT: once its replay has begun
    local until=$((SECONDS + 60))
    while [ ! -f "$RUNS/$1-r1/requests.jsonl" ] && [ "$SECONDS" -lt "$until" ]; do sleep 0.2; done
    sleep "$DEATH_S"
    echo "P of $1 dies at $(date -u +%T)" | tee -a "$LOGS/$1/deaths.txt"
    signal_lasting KILL "$LOGS/$1" prefill-0
}

dead_p() { # EXPERIMENT P_PORT D_PORT
    both_up "$@" || return 1
    rm -rf "${RUNS:?}/$1-r1"
    kill_the_p "$1" &
    timeout -k 5 "$(left 110)" python3 -m apd_replay replay "$(MATRIX=$PROVOKED id_of "$1")" --replicate 1 --config "$CONFIG/config.yaml" --matrix "$PROVOKED" --out "$RUNS/$1-r1"
    echo "$1: replay ended with status $?; D answers /health: $(fetch "http://127.0.0.1:$3/health" | cut -c 1-3), /v1/loads: $(fetch "http://127.0.0.1:$3/v1/loads" | cut -c 1-3)"
}

latch() {
    both_up latch 27000 27001 || return 1
    timeout -k 5 "$(left 120)" python3 workflow/gpu/provoke.py --prefill http://127.0.0.1:27000 27100 --decode http://127.0.0.1:27001 --pool "$LATCH_POOL" \
        --prompt "$PROMPT" --decode-group "$(cat "$LOGS/latch/decode-0.pid")" --seconds "$(left 85)"
}

provoking=()
dead_p dead-p 25000 25001 & provoking+=($!)
[ -z "$CONTROL" ] || { dead_p dead-p-nixl 26000 26001 & provoking+=($!); }
latch & provoking+=($!)
for k in "${provoking[@]}"; do wait "$k"; done
for folder in dead-p dead-p-nixl latch; do [ ! -d "$LOGS/$folder" ] || stop_lasting "$LOGS/$folder" prefill-0 decode-0; done
grep -ahE "KVTransferError|Session [^ ]+ failed|is not alive|retract|recovered|Attempting to reconnect|Lost connection|KV cache pool is full" "$LOGS"/latch/*.log "$LOGS"/dead-p*/*.log | cut -c 1-220 | sort | uniq -c | sort -rn | head -30
