#!/usr/bin/env bash
# Everything that needs a GPU, in one command and below ten minutes, without a network: tests/gpu/run.sh [OUT.json]
# Prints a table of steps; writes them, with the rows of the benches, to OUT.json (default bench/results/gpu-NAME.json).
# Exit code: 0 all well, 1 a step failed, 77 with the reason where no GPU answers.
#
# In the environment:
#   MODEL        a real model; default: SmolLM2 where bench/fetch_model.sh has put it; without one two steps are skipped
#   BUILD_DIR    default build-gpu
#   KVEVAL_BUILT a folder with kveval and tests/gpu/test_ops_cuda, built elsewhere: nothing is built here
#   SHAPES       of the kernel bench; default "qwen2.5-7b llama-3.1-8b smollm2"
#   TIME_LIMIT   seconds in all; default 570. What no longer fits is listed as not reached
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
export PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin"
limit=${TIME_LIMIT:-570}
shapes=${SHAPES-qwen2.5-7b llama-3.1-8b smollm2}
build=${KVEVAL_BUILT:-${BUILD_DIR:-build-gpu}}
model=${MODEL:-${KVEVAL_CACHE:-$HOME/.cache/kveval}/SmolLM2-135M-Instruct.Q4_1.gguf}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
steps=$work/steps.tsv
failed=0

no_gpu() {
    echo "skipped: $1"
    exit 77
}

row() { # NAME STATUS SECONDS NOTE
    printf '%s\t%s\t%s\t%s\n' "$@" >>"$steps"
    printf '| %-24s | %-11s | %7s | %s |\n' "$@"
    [ "$2" != FAILED ] || failed=1
}

last_line() { # FILE: its last line that says something
    grep -v '^[[:space:]]*$' "$1" | tail -n 1 | tr -s '\t ' ' ' | cut -c1-160
}

left() { echo $((limit - SECONDS)); }

# step NAME SECONDS COMMAND...: its status and its last line; 77 is a skip, a failure shows the end of what it said.
step() {
    local name=$1 most=$2 begin=$SECONDS rc=0 log=$work/${1//[^a-z0-9]/_}.log status=ok
    shift 2
    ((most <= $(left))) || most=$(left)
    if ((most < 5)); then
        row "$name" "not reached" 0 "the time limit of $limit s"
        return 1
    fi
    timeout --kill-after=10 "$most" "$@" >"$log" 2>&1 || rc=$?
    case $rc in
    0) ;;
    77) status=skipped ;;
    124 | 137) status=FAILED && echo "did not end within $most s" >>"$log" ;;
    *) status=FAILED ;;
    esac
    row "$name" "$status" $((SECONDS - begin)) "$(last_line "$log")"
    if [ "$status" = FAILED ]; then
        tail -n 25 "$log" | sed 's/^/    /' >&2
        return 1
    fi
}

# The op table under a tool of compute-sanitizer, family by family, for a share of the time.
sanitize() { # TOOL SECONDS
    local name="sanitizer: $1" begin=$SECONDS done_ones="" missed="" family rc log
    if ! command -v compute-sanitizer >/dev/null; then
        row "$name" skipped 0 "there is no compute-sanitizer on PATH; it comes with the CUDA toolkit"
        return
    fi
    for family in $families; do
        local most=$(($2 - (SECONDS - begin)))
        ((most <= $(left))) || most=$(left)
        if ((most < 5)); then
            missed="$missed $family"
            continue
        fi
        log=$work/$1-$family.log
        rc=0
        timeout --kill-after=10 "$most" compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 10 "$ops" "$family" \
            >"$log" 2>&1 || rc=$?
        if ((rc == 124 || rc == 137)); then
            missed="$missed $family"
        elif ((rc)); then
            row "$name" FAILED $((SECONDS - begin)) "$family: exit code $rc: $(last_line "$log")"
            tail -n 40 "$log" | sed 's/^/    /' >&2
            return
        else
            done_ones="$done_ones $family"
        fi
    done
    if [ -z "$done_ones" ]; then
        row "$name" "not reached" $((SECONDS - begin)) "no family of the op table ended in time"
    else
        row "$name" ok $((SECONDS - begin)) "clean:$done_ones${missed:+; not reached:$missed}"
    fi
}

# Builds for the devices of this machine; without nvidia-smi CMake asks them itself.
build_all() {
    local arch=native generator=()
    if command -v nvidia-smi >/dev/null; then
        arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d '. ' | sort -u | paste -sd';')
    fi
    ! command -v ninja >/dev/null || generator=(-G Ninja)
    cmake -S . -B "$build" "${generator[@]}" -DKVEVAL_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${arch:-native}" &&
        cmake --build "$build" --parallel "$(nproc)" --target kveval test_ops_cuda && echo "for sm_${arch:-native}"
}

if [ -z "${KVEVAL_BUILT:-}" ]; then
    nvidia-smi -L >/dev/null 2>&1 || compgen -G '/dev/nvidia[0-9]*' >/dev/null || [ -e /dev/dxg ] ||
        no_gpu "no GPU: nvidia-smi lists none, and there is no /dev/nvidia0"
    command -v nvcc >/dev/null || [ -n "${CUDACXX:-}" ] ||
        no_gpu "a GPU, but no nvcc: put it on PATH, set CUDA_HOME, or build elsewhere and name the folder in KVEVAL_BUILT"
fi
command -v python3 >/dev/null || no_gpu "there is no python3, which compares the results"

printf '| %-24s | %-11s | %7s | %s |\n| %s | %s | %s: | %s |\n' step status seconds what \
    ------------------------ ----------- ------ ----
if [ -z "${KVEVAL_BUILT:-}" ]; then
    export build
    export -f build_all
    step build 400 bash -c build_all || exit 1
fi
kveval=$build/kveval
ops=$build/tests/gpu/test_ops_cuda
families=$(grep -o '{"[a-z_]*", op_table_' tests/simt/test_ops_simt.c | cut -d'"' -f2 | tr '\n' ' ')
device=$("$kveval" ls devices --json |
    python3 -c 'import json, sys; print({d["backend"]: d["device"] for d in json.load(sys.stdin)}["cuda"])') || exit 1
case $device in
"cuda, "*) row device ok 0 "$device" ;;
*) no_gpu "$device" ;;
esac

step "op table" 120 "$ops"
step "cpu and cuda, tiny" 120 python3 tests/e2e/test_backends.py "$kveval" .
step "20 runs, the same bits" 150 python3 tests/gpu/repeat.py "$kveval" .
step "graphs on and off" 60 python3 tests/gpu/graphs.py "$kveval" .
if [ -f "$model" ]; then
    step "cpu and cuda, real" 120 python3 tests/gpu/model.py "$kveval" . "$model"
else
    row "cpu and cuda, real" skipped 0 "there is no $(basename "$model"); name a model in MODEL, or run bench/fetch_model.sh"
fi
for shape in $shapes; do
    step "kernels: $shape" 100 bash -c '"$1" bench kernels --backend cuda --shape "$2" --length 4096,32768 --timeout 0.3 \
        --format jsonl >"$3" && wc -l <"$3" | sed "s/$/ rows/"' - "$kveval" "$shape" "$work/kernels-$shape.jsonl"
done
if [ -f "$model" ]; then
    step "engine" 100 bash -c '"$1" bench e2e --backend cuda --model "$2" --timeout 5 --format jsonl >"$3" &&
        wc -l <"$3" | sed "s/$/ rows/"' - "$kveval" "$model" "$work/e2e.jsonl"
else
    row engine skipped 0 "no model"
fi
# Slow, and of unknown length: they get what time is left, in equal parts.
tools=(memcheck racecheck initcheck synccheck)
for i in "${!tools[@]}"; do
    sanitize "${tools[i]}" $(($(left) / (${#tools[@]} - i)))
done
python3 tests/gpu/result.py "$work" "$device" "${1:-}"
exit "$failed"
