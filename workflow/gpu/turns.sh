# Sourced by matrix.sh before its runs, on the matrix's own servers: what a turn costs beyond what calibrate.sh measures (a direct append, KV into
# scattered slots), and six sessions of five turns whose direct turns must compute only what was appended.
AT=http://127.0.0.1
calibrate() { # WHAT SECONDS ARGUMENTS...
    local what=$1 seconds=$2
    shift 2
    step timeout -k 5 "$(left $((seconds + 20)))" python3 -m apd_replay calibrate "$what" "$@" --raw "$OUT/raw-turns.jsonl" --deadline-s "$(left "$seconds")"
}

empty() { step python3 -c 'import sys, urllib.request
for url in sys.argv[1:]:
    urllib.request.urlopen(urllib.request.Request(url + "/flush_cache", method="POST"), timeout=20)' "$@"; }

read -ra ENDS <<< "--prefill $AT:21000 --decode $AT:22000 --bootstrap-port 21100"
if [ "$KVC_UP" = 1 ]; then
    calibrate append "${APPEND_S:-60}" "${ENDS[@]}"
    empty $AT:21000 $AT:22000
    calibrate scattered "${SCATTERED_S:-70}" "${ENDS[@]}" --backend "$BACKEND"
    empty $AT:21000 $AT:22000
    unified=()
    [ "$DP_UP" != 1 ] || unified=(--unified "$AT:23000")
    step timeout -k 5 "$(left 60)" python3 workflow/gpu/six_sessions.py --prefill $AT:21000 21100 --decode $AT:22000 "${unified[@]}" ${SIX_ARGUMENTS:-} > "$OUT/six-sessions.jsonl"
    echo "six sessions of five turns ended with status $?: $(tail -n 1 "$OUT/six-sessions.jsonl")"
    empty $AT:21000 $AT:22000
fi
