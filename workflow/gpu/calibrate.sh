#!/usr/bin/env bash
# Calibrate on a GPU host: two models on one worker each, and KV transfer over every backend that the host allows.
#
#   bash workflow/gpu/calibrate.sh          from the root of the checkout, after the kit's parts were copied to /tmp/kit
#
# OUT (default ./gpu-results) receives raw-*.jsonl (measurements as they happened), hardware-*.yaml (fits), logs.tar.gz,
# compiled.tar.gz (what was compiled here: bring it along next time) and session.log. Four GPUs measure all at once, fewer one after
# the other. SESSION_S (default 570) bounds it all, and what was measured by then is kept.
# Another kind of machine: LAUNCHER (how a server is started), MODELS, BIG, SMALL, WORKER_ARGUMENTS, LINK_ARGUMENTS, DECODE_ARGUMENTS, BACKENDS.
set -u
OUT=${OUT:-gpu-results}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
LOGS=${LOGS:-/tmp/logs}
exec > >(tee "$OUT/session.log") 2>&1
. workflow/gpu/setup.sh || exit 1
. workflow/gpu/servers.sh

BIG=${BIG:-q30a3} SMALL=${SMALL:-q06}
read -ra WORKER <<< "${WORKER_ARGUMENTS:---mem-fraction-static 0.9 --cuda-graph-max-bs-decode 32 --cuda-graph-bs-prefill 64 128 256 512 1024 2048 4096 8192}"
read -ra LINK <<< "${LINK_ARGUMENTS:---mem-fraction-static 0.85 --cuda-graph-max-bs-decode 32 --disable-prefill-cuda-graph --max-total-tokens 60000}"
read -ra DECODE <<< "${DECODE_ARGUMENTS:-}"
read -ra BACKENDS <<< "${BACKENDS:-nixl mooncake_tcp $([ "$GPUS" -gt 1 ] && echo mooncake) nixl+plugin}"
PLUGIN=(env SGLANG_PLUGINS=apd_replay APD_SGLANG_PLUGIN={})
NVLINK=(env MC_INTRANODE_NVLINK=true SGLANG_MOONCAKE_CUSTOM_MEM_POOL=INTRA_NODE_NVLINK)

serve_worker() { serve "worker-$1" "$1" "$2" "$3" "${WORKER[@]}"; } # MODEL GPU PORT

serve_link() { # MODEL P_GPU D_GPU PORT BACKEND: with this package's plugin in D where BACKEND ends in +plugin
    local launcher=("${LAUNCH[@]}") backend=${5%+plugin} resident=()
    [ "$backend" = mooncake ] && LAUNCH=("${NVLINK[@]}" "${LAUNCH[@]}")
    serve "prefill-$1-$5" "$1" "$2" "$4" "${LINK[@]}" --disaggregation-mode prefill --disaggregation-transfer-backend "$backend" --disaggregation-bootstrap-port $(($4 + 10))
    if [ "$backend" != "$5" ]; then
        LAUNCH=("${PLUGIN[@]}" "${LAUNCH[@]}")
        resident=(--disaggregation-decode-enable-radix-cache)
    fi
    serve "decode-$1-$5" "$1" "$3" $(($4 + 1)) "${LINK[@]}" --disaggregation-mode decode --disaggregation-transfer-backend "$backend" --max-running-requests 40 "${DECODE[@]}" "${resident[@]}"
    LAUNCH=("${launcher[@]}")
}

measure() { # NAMES PORTS COMMAND...: run it once the servers are there, else show why they are not
    local names=$1 ports=$2 name
    shift 2
    if wait_healthy 240 $ports; then
        step "$@"
    else
        for name in $names; do echo "--- $name"; tail -n 20 "$LOGS/$name.log"; done
    fi
}

measure_worker() { # MODEL PORT SECONDS
    measure "worker-$1" "$2" python3 -m apd_replay calibrate worker --server "http://127.0.0.1:$2" --raw "$OUT/raw-$1.jsonl" --deadline-s "$3"
}

measure_link() { # MODEL PORT BACKEND: KV transfer, or with the plugin the price of its calls
    local what=(link --backend "$3")
    [ "$3" = "${3%+plugin}" ] || what=(calls)
    measure "prefill-$1-$3 decode-$1-$3" "$2 $(($2 + 1))" python3 -m apd_replay calibrate "${what[@]}" --prefill "http://127.0.0.1:$2" \
        --decode "http://127.0.0.1:$(($2 + 1))" --bootstrap-port $(($2 + 10)) --raw "$OUT/raw-links.jsonl" --deadline-s "$(left 60)"
}

links() { # MODEL P_GPU D_GPU PORT BACKENDS...: all pairs start together, each is measured while the others idle
    local model=$1 p=$2 d=$3 port=$4 backend
    shift 4
    for backend in "$@"; do serve_link "$model" "$p" "$d" "$port" "$backend"; port=$((port + 20)); done
    port=$((port - 20 * $#))
    for backend in "$@"; do
        measure_link "$model" "$port" "$backend"
        stop "prefill-$model-$backend" "decode-$model-$backend"
        port=$((port + 20))
    done
}

finish() { # fits and logs, whatever happened before
    stop_all
    for model in "$BIG" "$SMALL"; do
        [ -f "$OUT/raw-$model.jsonl" ] || continue
        python3 -m apd_replay calibrate fit "$OUT"/raw-*.jsonl --model "$model" --title "$model shape, dummy weights, bf16" \
            --base config/hardware/h200-qwen3-30b-a3b.yaml --out "$OUT/hardware-$model.yaml"
    done
    tar czf "$OUT/logs.tar.gz" -C "$(dirname "$LOGS")" "$(basename "$LOGS")"
    (cd "$HOME" && find .triton .cache/flashinfer .cache/tvm-ffi .cache/sglang -type f -print0 2> /dev/null | tar czf "$OUT/compiled.tar.gz" --null -T -)
    ls -la "$OUT"
    echo "ended with $(left) s left"
}
trap finish EXIT

echo "$GPUS GPUs, $(nproc) cores, $(left) s, backends: ${BACKENDS[*]}"
nvidia-smi topo -m > "$LOGS/topology.txt" 2>&1
if [ "$GPUS" -ge 2 ]; then
    serve_worker "$BIG" 0 31000
    serve_worker "$SMALL" 1 32000
    measure_worker "$BIG" 31000 "$(left 420)" & GROUP[measuring-big]=$!
    measure_worker "$SMALL" 32000 "$(left 420)" & GROUP[measuring-small]=$!
    p=2 d=3
    if [ "$GPUS" -lt 4 ]; then
        wait "${GROUP[measuring-big]}" "${GROUP[measuring-small]}"
        stop "worker-$BIG" "worker-$SMALL"
        p=0 d=1
    fi
    links "$SMALL" $p $d 33000 "${BACKENDS[@]}"
    links "$BIG" $p $d 34000 nixl
    wait "${GROUP[measuring-big]}" "${GROUP[measuring-small]}"
else
    serve_worker "$BIG" 0 31000
    measure_worker "$BIG" 31000 "$(left 200)"
    stop "worker-$BIG"
    links "$SMALL" 0 0 33000 "${BACKENDS[@]}"
    serve_worker "$SMALL" 0 32000
    measure_worker "$SMALL" 32000 "$(left 120)"
fi
