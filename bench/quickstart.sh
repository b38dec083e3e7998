#!/usr/bin/env bash
# From a fresh Debian machine to curves: installs what is needed, builds, fetches the default model, and compares policies
# on RULER at several budgets. Some minutes on 2 cores. OUT, SAMPLES and BUDGETS in the environment change the run.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/install.sh build
cmake -S . -B build -G Ninja -DBUILD_TESTING=OFF "$cuda_args" >/dev/null
ninja -C build
model=$(bash bench/fetch_model.sh)
out=${OUT:-runs/quickstart}
policies=full,random,streaming_llm,knorm,keydiff,lagkv,kvp_r,kvp_s,snapkv,tova,oracle
run() {
  build/kveval eval --model "$model" --task ruler-1k --policy "$policies" --budget "${BUDGETS:-64,128,256,512,768}" \
    --samples "$1" --reward --out "$out"
}
begin=$SECONDS
run "${SAMPLES:-1}"
# One sample of each task gives curves, three also give intervals: the same folder goes on where they take two minutes.
if [ -z "${SAMPLES:-}" ] && ((SECONDS - begin < 60)); then run 3; fi
build/kveval report "$out" >/dev/null
echo
echo "More samples: SAMPLES=10 bash bench/quickstart.sh goes on from here. The page with all curves: $out/report/index.html"
