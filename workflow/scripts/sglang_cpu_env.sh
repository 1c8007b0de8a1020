#!/bin/sh
# Make a virtual environment in which stock SGLang serves on a machine without a GPU.
#
#   workflow/scripts/sglang_cpu_env.sh [VENV]        default: .sglang/venv in this repository
#
# Needs Python 3.11 (PYTHON=... names another) and 4 GB of disk. The tiny model lies beside the environment, in VENV/tiny-llama.
# Mooncake's transfer engine links against libibverbs even over TCP: installed with apt-get where we may, else said how.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
venv=${1:-$root/.sglang/venv}
files=$root/workflow/sglang-cpu
began=$(date +%s)

"${PYTHON:-python3.11}" -m venv "$venv"
pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check"
$pip -r "$files/requirements.txt"
$pip --no-deps -r "$files/requirements-nodeps.txt"
$pip --no-deps -e "$root"

site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
cp -R "$files/stubs/." "$site/"

if ! ldconfig -p | grep -q 'libibverbs\.so\.1'; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get install -y -qq libibverbs1 >/dev/null || { apt-get update -qq && apt-get install -y -qq libibverbs1 >/dev/null; }
    else
        echo "libibverbs.so.1 is missing: prefill/decode servers will not start until you run: sudo apt-get install libibverbs1" >&2
    fi
fi

"$venv/bin/python" "$files/tiny_model.py" "$venv/tiny-llama"
"$venv/bin/python" -c 'import sglang, torch; print("SGLang", sglang.__version__, "with torch", torch.__version__)'
echo "ready in $(($(date +%s) - began)) s, $(du -sh "$venv" | cut -f1): $venv"
echo "to use it: export APD_SGLANG_PYTHON=$venv/bin/python   (not needed for .sglang/venv)"
