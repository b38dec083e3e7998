#!/usr/bin/env bash
# From a fresh Debian machine to curves: installs what is needed, builds, fetches the default model, and compares all policies
# on RULER at several budgets. Some minutes on 2 cores. OUT, SAMPLES and BUDGETS in the environment change the run.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/install.sh build
cmake -S . -B build -G Ninja -DBUILD_TESTING=OFF >/dev/null
ninja -C build
model=$(bash bench/fetch_model.sh)
out=${OUT:-runs/quickstart}
build/kveval eval --model "$model" --task ruler-1k --policy all --budget "${BUDGETS:-64,128,256,512,768}" \
  --samples "${SAMPLES:-3}" --reward --out "$out"
echo
echo "The same command resumes and adds samples (SAMPLES=10). The page with all curves: $out/report/index.html"
