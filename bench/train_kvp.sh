#!/usr/bin/env bash
# Makes the learned policies of the default model from nothing: traces of training and of held-out samples, then kveval
# train. `train_kvp.sh r` (the default) makes kvp_r, from RULER; `r4k` makes kvp_r4k, from these traces and longer ones, by
# regression; `s` makes kvp_s, from dialogues and prose. Goes on where it stopped.
# kvp_r: the seeds are not the evaluation's (42), and of RULER's tasks only some are trained on: niah_single_2,
#   niah_single_3, niah_multikey_2, niah_multiquery and fwe are left for tests. TASKS; SAMPLES and HELD_OUT of each.
# kvp_r4k: the same and LONG_SAMPLES of each task at LONG (4k).
# kvp_s: DIALOGUES, a file of OASST2 message trees, of which the first two thirds train; TEXTS and HELD_TEXTS, text files,
#   every window of LENGTH tokens of them; SAMPLES and HELD_OUT dialogues. Without either datasets/fetch.sh downloads OASST2.
# In the environment also: MODEL, OUT; LENGTH of the prompts; STEPS, LR, OBJECTIVE, INPUTS, WIDTH; HAYSTACK, an essay
# text for RULER; MAX_GIB of traces, MAX_MINUTES in all.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${KVEVAL:-}" ]; then
  . tests/install.sh build
  cmake -S . -B build -G Ninja -DBUILD_TESTING=OFF "$cuda_args" >/dev/null
  ninja -C build
fi
kveval=${KVEVAL:-build/kveval}
model=${MODEL:-$(bash bench/fetch_model.sh)}
recipe=${1:-r}
out=${OUT:-runs/kvp_$recipe}
length=${LENGTH:-1k}
tasks=${TASKS:-niah_single_1,niah_multikey_1,niah_multikey_3,niah_multivalue,vt,cwe}
max_gib=${MAX_GIB:-16} max_minutes=${MAX_MINUTES:-170}
train_seed=1001 held_out_seed=2002
case $recipe in
r) samples=${SAMPLES:-16} held_out=${HELD_OUT:-2} steps=${STEPS:-3000} ;;
r4k) samples=${SAMPLES:-16} held_out=${HELD_OUT:-2} steps=${STEPS:-1200} ;;
s) samples=${SAMPLES:-100} held_out=${HELD_OUT:-20} steps=${STEPS:-3500} ;;
*) echo "usage: bench/train_kvp.sh [r|r4k|s] (r: trained on RULER, r4k: at 1k and 4k, s: on dialogues and prose)" >&2; exit 2 ;;
esac

minutes_left() { echo $((max_minutes - SECONDS / 60)); }
out_of_time() {
  echo "bench/train_kvp.sh: $max_minutes minutes are over (MAX_MINUTES); the same command goes on from here" >&2
  exit 85
}

# trace FOLDER NAME SAMPLES SEED TASK [FLAGS]: a folder for each, renamed when it is complete.
trace() {
  local dir=$out/$1/$2
  [ -d "$dir" ] && return
  (($(minutes_left) > 0)) || out_of_time
  rm -rf "$dir.part"
  "$kveval" trace --model "$model" --task "$5" --samples "$3" --seed "$4" --out "$dir.part" "${@:6}" 2>&1 |
    sed 's/^/  /' >&2
  mv "$dir.part" "$dir"
}

# All traces take about as much as the first one, each.
check_disk() {
  local one mib
  one=$(find "$out" -name '*.safetensors' -path '*/held/*' -size +0 -exec du -m {} + | sort -n | tail -1 | cut -f1)
  mib=$((one * $1))
  if ((mib > max_gib * 1024)); then
    echo "bench/train_kvp.sh: the traces will take $((mib / 1024)) GiB, more than MAX_GIB=$max_gib; lower SAMPLES or LENGTH" >&2
    exit 2
  fi
}

# trace_ruler LENGTH SAMPLES HELD_OUT, of each task.
trace_ruler() {
  local names task
  IFS=, read -r -a names <<<"$tasks"
  for task in "${names[@]}"; do
    trace held "$1-$task" "$3" "$held_out_seed" "ruler-$1/$task" ${HAYSTACK:+--haystack "$HAYSTACK"}
    check_disk $((($2 + $3) * ${#names[@]}))
  done
  for task in "${names[@]}"; do
    trace train "$1-$task" "$2" "$train_seed" "ruler-$1/$task" ${HAYSTACK:+--haystack "$HAYSTACK"}
  done
}

trace_dialogues() {
  local trees=$1 n
  n=$(wc -l <"$trees")
  head -n $((n * 2 / 3)) "$trees" >"$out/dialogues-train.jsonl"
  tail -n +$((n * 2 / 3 + 1)) "$trees" >"$out/dialogues-held.jsonl"
  trace held dialogues "$held_out" "$held_out_seed" "oasst2-$length" --data "$out/dialogues-held.jsonl"
  check_disk $((samples + held_out))
  trace train dialogues "$samples" "$train_seed" "oasst2-$length" --data "$out/dialogues-train.jsonl"
}

trace_prose() {
  local trees=${DIALOGUES:-} text window=$length
  [ "${length%k}" = "$length" ] || window=$((${length%k} * 1024))
  if [ -z "$trees${TEXTS:-}" ]; then
    bash datasets/fetch.sh oasst2 "$out/data"
    trees=$(find "$out/data/oasst2" -name '*.jsonl' | head -1)
  fi
  [ -z "$trees" ] || trace_dialogues "$trees"
  for text in ${HELD_TEXTS:-}; do trace held "${text##*/}" 0 0 "text:$text" --window "$window"; done
  for text in ${TEXTS:-}; do trace train "${text##*/}" 0 0 "text:$text" --window "$window"; done
}

mkdir -p "$out"
objective=${OBJECTIVE:-rl}
case $recipe in
r) trace_ruler "$length" "$samples" "$held_out" ;;
r4k)
  objective=${OBJECTIVE:-regression}
  trace_ruler "$length" "$samples" "$held_out"
  trace_ruler "${LONG:-4k}" "${LONG_SAMPLES:-2}" 1
  ;;
s) trace_prose ;;
esac
(($(minutes_left) > 0)) || out_of_time
timeout --signal=INT --preserve-status "$(minutes_left)m" "$kveval" train --traces "$out/train" --held-out "$out/held" \
  --out "$out/kvp_$recipe.safetensors" --log "$out/kvp_$recipe.csv" --objective "$objective" --inputs "${INPUTS:-kvpos}" \
  --width "${WIDTH:-64}" --steps "$steps" --lr "${LR:-1e-3}"
echo "$out/kvp_$recipe.safetensors: $((SECONDS / 60)) minutes. Evaluate it on tasks that it has not seen:"
echo "  $kveval eval --model $model --task ruler-$length/niah_single_2,ruler-$length/fwe --budget 64,128,256 --reward \\"
echo "    --policy kvp:$out/kvp_$recipe.safetensors,knorm,keydiff,snapkv,oracle --samples 5 --out $out/eval"
