#!/usr/bin/env bash
# A timeline of a run on the device with Nsight Systems, and what it says in tables: bench/profile/nsys.sh [COMMAND...]
# COMMAND is arguments of kveval; without one: eval of TASK with POLICY at BUDGET.
#
# In the environment:
#   MODEL, TASK, POLICY, BUDGET, SAMPLES   of the default command; smollm2, ruler-1k/niah_single_1, knorm,snapkv, 128,512, 1
#   KVEVAL     the binary; default build/kveval
#   OUT        default runs/profile/nsys: OUT.nsys-rep and OUT.txt are written
#   RANGE      prefill, decode, "score knorm", ranking, compaction, "layer 3", step, or a sample's name: only the first
#              range of that name is captured
set -euo pipefail
cd "$(dirname "$0")/../.."
. bench/profile/common.sh
need_tool nsys "Nsight Systems (package nsight-systems, or the CUDA toolkit's installer)"
need_device

# shellcheck disable=SC2054
options=(--trace=cuda,nvtx,cublas,osrt --cuda-memory-usage=true --force-overwrite=true --output="$OUT")
if [ -n "${RANGE:-}" ]; then
    # kveval calls cudaProfilerStart and cudaProfilerStop around the first range of that name
    export KVEVAL_PROFILE_RANGE=$RANGE
    options+=(--capture-range=cudaProfilerApi --capture-range-end=stop)
fi
nsys profile "${options[@]}" "$KVEVAL" "${COMMAND[@]}"
nsys stats --force-export=true --report nvtx_gpu_proj_sum,cuda_gpu_kern_sum,cuda_gpu_mem_time_sum,cuda_api_sum \
    "$OUT.nsys-rep" | tee "$OUT.txt"
echo "$OUT.nsys-rep: open it in Nsight Systems; the tables are in $OUT.txt"
