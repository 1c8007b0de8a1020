# Source this on a GPU host without network, from the root of the checkout: the kit's parts become an environment.
#   KIT   folder with the parts (default /tmp/kit)      SITE  where they are unpacked (default /tmp/site)
# A second call on the same host finds SITE in place and only brings this package up to date.
KIT=${KIT:-/tmp/kit}
SITE=${SITE:-/tmp/site}
if [ ! -f "$SITE/env.sh" ]; then
    python3 "$KIT/install.py" "$KIT" --to "$SITE" || return 1
    # Kernels that Triton and others compiled on an earlier stay, if they were brought along.
    if [ -f "$KIT/compiled.tar.gz" ]; then tar xzf "$KIT/compiled.tar.gz" -C "$HOME"; fi
fi
python3 -m apd_replay.cluster.kit.own "$SITE" || return 1
. "$SITE/env.sh"
export CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}
# SGLang loads every plugin that it finds: a server is stock unless it is told otherwise.
export PYTHONUNBUFFERED=1 no_proxy='*' SGLANG_LOG_MS=1 SGLANG_PLUGINS=none
# Multicast over NVLink can take a shared host's GPUs out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
GPUS=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
export GPUS
if [ "$GPUS" -gt 0 ] && [ ! -f "$SITE/kernels-tried" ]; then
    python3 workflow/gpu/load_kernels.py "$SITE" && touch "$SITE/kernels-tried" || echo "the kernels compiled elsewhere were not tried"
fi
