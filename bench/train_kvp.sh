#!/usr/bin/env bash
# Makes kvp_r, the learned policy of the default model trained on RULER, from nothing: traces of training and of held-out
# samples, then kveval train. Goes on where it stopped. The seeds are not the evaluation's (42), and of RULER's tasks only
# some are trained on: niah_single_2, niah_single_3, niah_multikey_2, niah_multiquery and fwe are left for tests.
# In the environment: MODEL, OUT; LENGTH of the prompts; TASKS; SAMPLES and HELD_OUT of each task; STEPS, LR, OBJECTIVE,
# INPUTS, WIDTH; HAYSTACK, an essay text; MAX_GIB of traces, MAX_MINUTES in all.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${KVEVAL:-}" ]; then
  . tests/install.sh build
  cmake -S . -B build -G Ninja -DBUILD_TESTING=OFF "$cuda_args" >/dev/null
  ninja -C build
fi
kveval=${KVEVAL:-build/kveval}
model=${MODEL:-$(bash bench/fetch_model.sh)}
out=${OUT:-runs/kvp_r}
length=${LENGTH:-1k}
tasks=${TASKS:-niah_single_1,niah_multikey_1,niah_multikey_3,niah_multivalue,vt,cwe}
samples=${SAMPLES:-30} held_out=${HELD_OUT:-4}
max_gib=${MAX_GIB:-16} max_minutes=${MAX_MINUTES:-170}
train_seed=1001 held_out_seed=2002

minutes_left() { echo $((max_minutes - SECONDS / 60)); }
out_of_time() {
  echo "bench/train_kvp.sh: $max_minutes minutes are over (MAX_MINUTES); the same command goes on from here" >&2
  exit 85
}

# trace FOLDER SAMPLES SEED TASK: a folder per task, renamed when it is complete.
trace() {
  local dir=$out/$1/$4
  [ -d "$dir" ] && return
  (($(minutes_left) > 0)) || out_of_time
  rm -rf "$dir.part"
  "$kveval" trace --model "$model" --task "ruler-$length/$4" --samples "$2" --seed "$3" --out "$dir.part" \
    ${HAYSTACK:+--haystack "$HAYSTACK"} 2>&1 | sed 's/^/  /' >&2
  mv "$dir.part" "$dir"
}

# All traces take about as much as the first one, each.
check_disk() {
  local one mib
  one=$(find "$out" -name '*.safetensors' -path '*/held/*' -size +0 -exec du -m {} + | sort -n | tail -1 | cut -f1)
  mib=$((one * (samples + held_out) * $#))
  if ((mib > max_gib * 1024)); then
    echo "bench/train_kvp.sh: the traces will take $((mib / 1024)) GiB, more than MAX_GIB=$max_gib; lower SAMPLES or LENGTH" >&2
    exit 2
  fi
}

mkdir -p "$out"
IFS=, read -r -a names <<<"$tasks"
trace held "$held_out" "$held_out_seed" "${names[0]}"
check_disk "${names[@]}"
for task in "${names[@]}"; do trace held "$held_out" "$held_out_seed" "$task"; done
for task in "${names[@]}"; do trace train "$samples" "$train_seed" "$task"; done
(($(minutes_left) > 0)) || out_of_time
timeout --signal=INT --preserve-status "$(minutes_left)m" "$kveval" train --traces "$out/train" --held-out "$out/held" \
  --out "$out/kvp_r.safetensors" --log "$out/kvp_r.csv" --objective "${OBJECTIVE:-rl}" --inputs "${INPUTS:-kvpos}" \
  --width "${WIDTH:-64}" --steps "${STEPS:-4000}" --lr "${LR:-1e-3}"
echo "$out/kvp_r.safetensors: $((SECONDS / 60)) minutes. Evaluate it on tasks that it has not seen:"
echo "  $kveval eval --model $model --task ruler-$length/niah_single_2,ruler-$length/fwe --budget 64,128,256 --reward \\"
echo "    --policy kvp:$out/kvp_r.safetensors,knorm,keydiff,snapkv,oracle --samples 5 --out $out/eval"
