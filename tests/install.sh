#!/usr/bin/env bash
# Installs the Debian packages that are missing. Sourced: `. tests/install.sh build` for what building and reports need,
# `test` for the tests as well, `ci` for the gates, too.
set -euo pipefail
packages=(build-essential cmake ninja-build pkg-config libcjson-dev libpcre2-dev libssl-dev gnuplot-nox python3 python3-pip ca-certificates)
[ "$1" = build ] || packages+=(libcmocka-dev)
[ "$1" != ci ] || packages+=(clang libclang-rt-dev clang-format git)
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
# What the scripts tell CMake about CUDA: kernels for the device that is here, and none (they take minutes) where there is
# no device. A later -D wins.
if [ -e /dev/nvidia0 ]; then
    # shellcheck disable=SC2034
    cuda_args=-DCMAKE_CUDA_ARCHITECTURES=native
else
    # shellcheck disable=SC2034
    cuda_args=-DKVEVAL_CUDA=OFF
fi
