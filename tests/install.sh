#!/usr/bin/env bash
# Installs the Debian packages that kveval builds and tests with, if one is missing. Sourced by tests/run.sh and .ci/run.
set -euo pipefail
packages=(build-essential cmake ninja-build pkg-config libcjson-dev libpcre2-dev libssl-dev libcmocka-dev gnuplot-nox clang-format python3 python3-pip)
missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
if ((${#missing[@]})); then
    if [ "$(id -u)" = 0 ]; then sudo=""; else sudo="sudo"; fi
    echo "installing: ${missing[*]}"
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
