# What nsys.sh and ncu.sh share; sourced with the command's arguments in "$@". Sets KVEVAL, COMMAND and OUT.
# shellcheck shell=bash
KVEVAL=${KVEVAL:-build/kveval}
OUT=${OUT:-runs/profile/nsys}
COMMAND=("$@")
# shellcheck disable=SC2034
((${#COMMAND[@]})) || COMMAND=(eval --model "${MODEL:-smollm2}" --task "${TASK:-ruler-1k/niah_single_1}" --policy "${POLICY:-knorm,snapkv}"
    --budget "${BUDGET:-128,512}" --samples "${SAMPLES:-1}" --backend cuda --out "$(mktemp -d)" --quiet)

# A recorded step is one launch to a profiler; without recording every op shows.
export KVEVAL_CUDA_GRAPHS=${KVEVAL_CUDA_GRAPHS:-off}

need_tool() { # NAME WHERE_FROM
    command -v "$1" >/dev/null && return
    echo "there is no $1 on PATH; it belongs to $2" >&2
    exit 77
}

need_device() {
    [ -x "$KVEVAL" ] || { echo "there is no $KVEVAL; build it with -DKVEVAL_CUDA=ON, or name it in KVEVAL" >&2; exit 2; }
    "$KVEVAL" ls devices | grep -q '^cuda  *cuda, ' || {
        echo "skipped: $("$KVEVAL" ls devices | sed -n 's/^cuda  *//p')" >&2
        exit 77
    }
    mkdir -p "$(dirname "$OUT")"
}
