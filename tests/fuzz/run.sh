#!/usr/bin/env bash
# Fuzzes every parser for a while: run.sh [SECONDS_PER_TARGET=5] [TARGET...]. One line per target; exit 1 at any crash,
# whose input then lies in build-fuzz/crashes. To replay one: build-fuzz/tests/fuzz/fuzz_TARGET FILE
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-5}
shift || true
targets=("$@")
((${#targets[@]})) || targets=(json gguf safetensors kvp tokenizer config chat rows qa tasks record report)
build=${BUILD_DIR:-build-fuzz}
crashes=$build/crashes
# One allocation above 256 MiB is a fault too: no seed has more than 32 KiB, so a number of the file was believed.
options=(-timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=256 -max_total_time="$seconds" -print_final_stats=1)

CC=clang cmake -S . -B "$build" -G Ninja -DKVEVAL_FUZZ=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g" >/dev/null
ninja -C "$build" fuzz >"$build/ninja.log" || { cat "$build/ninja.log"; exit 1; }
mkdir -p "$crashes" "$build/logs"
tmp=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/seeds/gguf"
python3 tests/fuzz/seeds.py "$tmp/seeds"
"$build/tests/fuzz/seeds_gguf" "$tmp/seeds/gguf"

failed=0
for t in "${targets[@]}"; do
    log=$build/logs/$t.log
    touch "$tmp/start"
    rc=0
    UBSAN_OPTIONS=print_stacktrace=1 TMPDIR=$tmp "$build/tests/fuzz/fuzz_$t" "${options[@]}" -artifact_prefix="$crashes/$t-" "$tmp/seeds/$t" \
        >"$log" 2>&1 || rc=$?
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    mapfile -t found < <(find "$crashes" -name "$t-*" -newer "$tmp/start")
    printf '%-12s %9s executions, %d new crashes\n' "$t" "${executions:-0}" "${#found[@]}"
    if ((rc || ${#found[@]})); then
        failed=1
        printf '    exit code %d, log %s, input: %s\n' "$rc" "$log" "${found[*]:-none}"
    fi
done
exit "$failed"
