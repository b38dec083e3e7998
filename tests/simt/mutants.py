#!/usr/bin/env python3
"""Runs the seeded mistakes of mutants.cu and mutants_host.cu in every variant and schedule and prints what noticed them.

    mutants.py BUILD_FOLDER VARIANT,... [NAME]

A mistake passes if everything that must notice it does, in all three schedules, and if nothing is noticed in the same
code without the mistake. Without NAME: all of them, as one table."""
import os
import pathlib
import subprocess
import sys

SCHEDULES = ["fifo", "reverse", "random"]

# What must notice each mistake in every schedule. What else does is shown in the table and is a gift.
ALL = ["plain", "asan", "check"]
MUST = {
    "barrier": ["check"],
    "barrier_reuse": ["check"],
    "divergent_barrier": ALL,
    "early_exit": ALL,
    "syncwarp": ["check"],
    "syncwarp_reuse": ["check"],
    "partial_vote": ALL,
    "outside_shuffle": ALL,
    "block_sum": ["check"],
    "fence": ["check"],
    "bounds": ALL,
    "read_bounds": ["asan", "check"],
    "vector_bounds": ALL,
    "shared_bounds": ["asan"],
    "dynamic_bounds": ["asan", "check"],
    "uninitialised": ["plain", "check"],
    "unset_global": ALL,
    "misaligned": ["asan"],
    "misaligned_member": ["asan", "check"],
    "misaligned_ldg": ALL,
    "fragment_mapping": ALL,
    "host_pointer": ["check"],
    "device_pointer": ALL,
    "use_after_free": ALL,
    "copy_size": ALL,
    "copy_direction": ALL,
    "stream_wait": ["check"],
    "read_too_early": ALL,
    "gemm_ld_small": ALL,
    "gemm_ld_large": ALL,
}

# How a line of stderr or stdout tells who noticed, in order of preference.
SIGNS = [
    ("simt: race", "race"),
    ("simt: uninitialised read", "uninitialised"),
    ("simt: out of bounds", "bounds"),
    ("simt: not device memory", "not device"),
    ("simt: misaligned", "misaligned"),
    ("simt: host code touches", "host touch"),
    ("simt: host code touched", "host touch"),
    ("simt: the device touched", "bad address"),
    ("simt: something wrote outside", "canary"),
    ("simt: deadlock", "deadlock"),
    ("simt: threads of one block", "divergence"),
    ("simt: __syncthreads, but", "divergence"),
    ("simt: a shuffle at", "shuffle"),
    ("simt: a vote at", "vote"),
    ("simt: a load at", "misaligned"),
    ("simt: cuda", "call refused"),
    ("simt: cublas", "call refused"),
    ("AddressSanitizer", "ASan"),
    ("runtime error", "UBSan"),
    ("wrong answer", "wrong answer"),
]


def run(build: pathlib.Path, variant: str, schedule: str, *arguments: str) -> str:
    """Who noticed something, or "-"."""
    environment = dict(os.environ, SIMT_ORDER=schedule, SIMT_STRICT="1", SIMT_SEED="7")
    done = subprocess.run([build / f"mutants_{variant}", *arguments], env=environment, capture_output=True, text=True,
                          errors="replace", timeout=120)
    if done.returncode == 0:
        return "-"
    text = done.stderr + done.stdout
    return next((name for sign, name in SIGNS if sign in text), f"exit code {done.returncode}")


def must_notice(name: str) -> list:
    """Host code is kept from device memory by protection keys; without them only the checker's hooks see it."""
    keys = "ospke" in pathlib.Path("/proc/cpuinfo").read_text()
    return MUST[name] if keys or name != "device_pointer" else ["check"]


def row(build: pathlib.Path, variants: list, name: str) -> bool:
    cells, faults = [], []
    for variant in variants:
        seen = [run(build, variant, schedule, name) for schedule in SCHEDULES]
        cells.append(", ".join(dict.fromkeys(seen)) + f" {sum(s != '-' for s in seen)}/{len(seen)}")
        if variant in must_notice(name) and "-" in seen:
            faults.append(f"{variant} must notice it, and did not: {seen}")
        right = [run(build, variant, schedule, name, "right") for schedule in SCHEDULES]
        if right != ["-"] * len(SCHEDULES):
            faults.append(f"{variant} finds fault with the code that is right: {right}")
    print(f"{name:18}" + "".join(f"{cell:32}" for cell in cells).rstrip(), flush=True)
    for fault in faults:
        print(f"  FAILED: {fault}")
    return not faults


def main() -> int:
    build, variants = pathlib.Path(sys.argv[1]), sys.argv[2].split(",")
    listed = subprocess.run([build / "mutants_plain", "list"], capture_output=True, text=True, check=True).stdout.split()
    if sorted(listed) != sorted(MUST):
        print(f"mutants.py and mutants.cu name different mistakes: {sorted(set(listed) ^ set(MUST))}")
        return 1
    names = sys.argv[3:] or listed
    print(f"{'mistake':18}" + "".join(f"{variant:32}" for variant in variants).rstrip())
    results = [row(build, variants, name) for name in names]
    print(f"{len(results)} mistakes, {results.count(False)} not noticed as they must be")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
