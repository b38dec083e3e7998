#!/usr/bin/env bash
# Counters of single kernels with Nsight Compute: bench/profile/ncu.sh OP [COMMAND...]
# OP is an op of kernels/ops.h. COMMAND is arguments of kveval; without one: bench kernels --op OP at SHAPE's sizes, one
# sample a row.
#
# In the environment:
#   SHAPE, LENGTH   of the default command; qwen2.5-7b, 4096
#   KVEVAL    the binary; default build/kveval
#   OUT       default runs/profile/ncu-OP: OUT.ncu-rep and OUT.txt are written
#   SKIP, COUNT     kernels passed over first and then measured; 0 and 20. Each is run many times: few are enough
#   KERNEL    a regular expression of kernel names, instead of the op's range of the NVTX domain kveval
#   SET       of sections: basic, detailed (default), roofline, full
set -euo pipefail
cd "$(dirname "$0")/../.."
if (($# == 0)); then
    echo "usage: bench/profile/ncu.sh OP [COMMAND...]; the ops are those of kernels/ops.h" >&2
    exit 2
fi
op=$1
shift
(($#)) || set -- bench kernels --backend cuda --op "$op" --shape "${SHAPE:-qwen2.5-7b}" --length "${LENGTH:-4096}" \
    --min-samples 1 --timeout 0
OUT=${OUT:-runs/profile/ncu-$op}
. bench/profile/common.sh
need_tool ncu "Nsight Compute (package nsight-compute, or the CUDA toolkit's installer)"
need_device

filter=(--nvtx --nvtx-include "kveval@$op/")
[ -z "${KERNEL:-}" ] || filter=(--kernel-name "regex:$KERNEL")
status=0
ncu "${filter[@]}" --set "${SET:-detailed}" --launch-skip "${SKIP:-0}" --launch-count "${COUNT:-20}" \
    --force-overwrite --export "$OUT" "$KVEVAL" "${COMMAND[@]}" || status=$?
if [ ! -f "$OUT.ncu-rep" ]; then
    echo "ncu measured no kernel (exit code $status). Does this command run the op '$op'? KERNEL picks kernels by their names" \
        "instead. Counters may need leave of the driver: NVIDIA's page on ERR_NVGPUCTRPERM says how" >&2
    exit 1
fi
ncu --import "$OUT.ncu-rep" --page details >"$OUT.txt"
ncu --import "$OUT.ncu-rep" --page raw --csv --metrics \
    gpu__time_duration.sum,dram__bytes.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__throughput.avg.pct_of_peak_sustained_elapsed,sm__warps_active.avg.pct_of_peak_sustained_active,launch__registers_per_thread
echo "$OUT.ncu-rep: open it in Nsight Compute; all sections as text are in $OUT.txt"
