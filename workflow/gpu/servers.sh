# Source this after setup.sh: SGLang servers with bounded lives. Every one is stopped when the script that sourced this ends.
#   LOGS       folder of their logs
#   LAUNCHER   the command that starts one (default python3 -m sglang.launch_server)
#   SESSION_S  seconds from now on after which nothing runs any more (default 570)
SESSION_S=${SESSION_S:-570}
SESSION_END=$((SECONDS + SESSION_S))
mkdir -p "$LOGS"
set -m    # every job its own process group, so that a server's children end with it
declare -A GROUP
read -ra LAUNCH <<< "${LAUNCHER:-python3 -m sglang.launch_server}"

left() { # [AT_MOST]: seconds left of the session, at least 1
    local s=$((SESSION_END - SECONDS))
    if [ -n "${1:-}" ] && [ "$s" -gt "$1" ]; then s=$1; fi
    echo $((s > 1 ? s : 1))
}

launch() { # NAME COMMAND...: in the background, its output in LOGS/NAME.log
    local name=$1
    shift
    echo "# $*" > "$LOGS/$name.log"
    (cd /tmp && exec timeout -k 5 "$(left)" "$@") >> "$LOGS/$name.log" 2>&1 &
    GROUP[$name]=$!
}

serve() { # NAME MODEL GPU PORT ARGUMENTS...
    local name=$1 model=$2 gpu=$3 port=$4
    shift 4
    launch "$name" "${LAUNCH[@]}" --model-path "${MODELS:-$SITE/models}/$model" --load-format dummy --skip-tokenizer-init \
        --host 127.0.0.1 --port "$port" --nccl-port $((port + 500)) --base-gpu-id "$gpu" --sampling-backend pytorch --grammar-backend none \
        --random-seed 7 --log-level info --decode-log-interval 10 --enable-metrics --enable-cache-report --enable-request-time-stats-logging "$@"
}

stop() { # NAMES...
    local name
    for name in "$@"; do
        [ -n "${GROUP[$name]:-}" ] && kill -TERM -- "-${GROUP[$name]}" 2> /dev/null
    done
    for name in "$@"; do
        [ -n "${GROUP[$name]:-}" ] || continue
        for _ in 1 2 3 4 5 6 7 8; do kill -0 -- "-${GROUP[$name]}" 2> /dev/null || break; sleep 0.5; done
        kill -KILL -- "-${GROUP[$name]}" 2> /dev/null
        unset "GROUP[$name]"
    done
}

stop_all() { [ ${#GROUP[@]} -eq 0 ] || stop "${!GROUP[@]}"; }
trap stop_all EXIT
trap 'exit 143' TERM INT

step() { # COMMAND...: in the foreground, but ended at once when the script is
    "$@" &
    GROUP[step]=$!
    wait "$!"
}

wait_healthy() { # SECONDS PORTS...
    local limit=$1
    shift
    step python3 workflow/gpu/wait_healthy.py "$(left "$limit")" "${@/#/http://127.0.0.1:}"
}
