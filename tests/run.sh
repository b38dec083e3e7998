#!/usr/bin/env bash
# Builds kveval and runs the quick tests, from nothing, on a fresh Debian machine. BUILD_DIR and CMAKE_ARGS are optional.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/install.sh test
build=${BUILD_DIR:-build}
# shellcheck disable=SC2086
cmake -S . -B "$build" -G Ninja -DBUILD_TESTING=ON "$cuda_args" ${CMAKE_ARGS:-} | { grep -E "^-- (cuda|simt):" || true; }
ninja -C "$build"
ctest --test-dir "$build" --no-tests=error --output-on-failure -j "$(nproc)"
