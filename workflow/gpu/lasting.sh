# Source this after servers.sh: servers that outlive the script, so that the next call on the same host finds them (SERVERS_S seconds at most).
# Their logs and process ids lie in the folder that is given; stop_lasting ends them.
SERVERS_S=${SERVERS_S:-1500}
[ -n "${PLUGIN:-}" ] || PLUGIN='{"hint": "composite"}'    # a D always tells its pause; a replay without backpressure does not listen

lasting() { # FOLDER NAME COMMAND...
    local folder=$1 name=$2
    shift 2
    mkdir -p "$folder/events"
    echo "# $*" >> "$folder/$name.log"    # a server that starts anew goes on in its log
    (cd /tmp && exec setsid bash -c 'echo $$ > "$1"; shift; exec timeout -k 5 "$@"' lasting "$folder/$name.pid" "$SERVERS_S" "$@") >> "$folder/$name.log" 2>&1 < /dev/null &
}

lives() { # FOLDER NAME
    [ -f "$1/$2.pid" ] && kill -0 "$(cat "$1/$2.pid")" 2> /dev/null
}

signal_lasting() { # SIGNAL FOLDER NAMES...: to the whole group
    local signal=$1 folder=$2 name
    shift 2
    for name in "$@"; do
        [ -f "$folder/$name.pid" ] && kill "-$signal" -- "-$(cat "$folder/$name.pid")" 2> /dev/null
    done
    return 0
}

stop_lasting() { # FOLDER NAMES...
    local folder=$1 name
    signal_lasting CONT "$@"
    signal_lasting TERM "$@"
    shift
    sleep 2
    signal_lasting KILL "$folder" "$@"
    for name in "$@"; do rm -f "$folder/$name.pid"; done
}

fetch() { # URL: status and body of its answer, on one line; 000 where there is none
    python3 -c 'import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=5)
except urllib.error.HTTPError as error:
    answer = error
except OSError:
    sys.exit(print("000"))
print(answer.status, answer.read().decode(errors="replace").replace("\n", " "))' "$1"
}

serve_lasting() { # FOLDER NAME MODEL GPU PORT ARGUMENTS...: with ENVIRONMENT (an array) in front
    local folder=$1 name=$2 model=$3 gpu=$4 port=$5
    shift 5
    lasting "$folder" "$name" env "${ENVIRONMENT[@]}" "APD_SGLANG_EVENTS=$folder/events/$name.jsonl" "${LAUNCH[@]}" \
        --model-path "${MODELS:-$SITE/models}/$model" --load-format "${LOAD_FORMAT:-dummy}" --skip-tokenizer-init --host 127.0.0.1 --port "$port" --nccl-port $((port + 500)) \
        --base-gpu-id "$gpu" --sampling-backend pytorch --grammar-backend none --random-seed 7 --log-level info --decode-log-interval 10 \
        --enable-metrics --enable-cache-report --enable-request-time-stats-logging --weight-version "$name" "$@"
}

pair_lasting() { # FOLDER MODEL P_GPU FIRST_D_GPU PREFILL_PORT DECODE_PORT DECODES BACKEND POOL: one P and its D's with the plugin
    local folder=$1 model=$2 p=$3 d=$4 port=$5 decode=$6 count=$7 backend=$8 pool=$9 k
    local mode=(--disaggregation-transfer-backend "$backend" --max-total-tokens "$pool")
    ENVIRONMENT=(SGLANG_PLUGINS=apd_replay "APD_SGLANG_PLUGIN=$PLUGIN" "${EXTRA[@]}")
    [ "$backend" != mooncake ] || ENVIRONMENT+=(MC_INTRANODE_NVLINK=true SGLANG_MOONCAKE_CUSTOM_MEM_POOL=INTRA_NODE_NVLINK)
    serve_lasting "$folder" prefill-0 "$model" "$p" "$port" "${COMMON[@]}" "${PREFILL[@]}" "${mode[@]}" --disaggregation-mode prefill --disaggregation-bootstrap-port $((port + 100))
    for ((k = 0; k < count; k++)); do
        serve_lasting "$folder" "decode-$k" "$model" $((d + k)) $((decode + k)) "${COMMON[@]}" "${DECODE[@]}" "${mode[@]}" --disaggregation-mode decode --disaggregation-decode-enable-radix-cache
    done
}
