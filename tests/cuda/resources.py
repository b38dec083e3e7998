"""The gate that stands in for a device: every kernel of kernels/cuda is compiled for every architecture that the project
names; warnings, spills and local memory are errors, and registers, shared memory and occupancy are compared with
resources.csv beside this file.

    resources.py [--update]     compare, or write the table anew

Occupancy is that of registers, static shared memory and the block size in __launch_bounds__; dynamic shared memory is
the launch's. The numbers are those of one release of the compiler; with another one they are not compared, and that is
said. Exit code 77 where there is no nvcc."""
import concurrent.futures
import csv
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TABLE = os.path.join(HERE, "resources.csv")
COLUMNS = ["arch", "file", "kernel", "block", "registers", "shared_bytes", "warps_per_sm", "occupancy_pct"]
# Per architecture: warps, blocks and bytes of shared memory that one multiprocessor holds at the most.
LIMITS = {75: (32, 16, 65536), 80: (64, 32, 167936), 90: (64, 32, 233472), 100: (64, 32, 233472)}
REGISTERS, REGISTER_UNIT, SHARED_UNIT, SHARED_RESERVED = 65536, 256, 128, 1024


def find_nvcc():
    for folder in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if folder and os.path.exists(os.path.join(folder, "bin/nvcc")):
            return os.path.join(folder, "bin/nvcc")
    return shutil.which("nvcc")


def occupancy(arch, block, registers, shared):
    """Warps that live on one multiprocessor at once, and their share of the most."""
    max_warps, max_blocks, max_shared = LIMITS[arch]
    warps = -(-block // 32)
    per_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = REGISTERS // per_warp // warps if per_warp else max_blocks
    reserved = SHARED_RESERVED if arch >= 80 else 0
    by_shared = max_shared // (-(-(shared + reserved) // SHARED_UNIT) * SHARED_UNIT) if shared + reserved else max_blocks
    blocks = min(max_blocks, max_warps // warps, by_registers, by_shared)
    return blocks * warps, round(100 * blocks * warps / max_warps)


def demangle(names):
    out = subprocess.run(["c++filt", *names], capture_output=True, text=True, check=True).stdout.splitlines()
    return [re.sub(r"\(anonymous namespace\)::|^void ", "", name).split("(")[0] for name in out]


def compile_one(nvcc, path, arch):
    """Rows of one file on one architecture, or a message."""
    with tempfile.TemporaryDirectory() as keep:
        done = subprocess.run([nvcc, "-cubin", f"-arch=sm_{arch}", "-O3", "-std=c++17", f"-I{ROOT}", "-Xptxas",
                               "-v,-warn-spills,-warn-lmem-usage", "-Werror", "all-warnings", "--keep", "--keep-dir", keep,
                               "-o", os.path.join(keep, "out.cubin"), path], capture_output=True, text=True)
        if done.returncode:
            said = (done.stdout + done.stderr).splitlines()
            return "\n".join(f"{path}: sm_{arch}: {line}" for line in [s for s in said if "error" in s] or said)
        with open(glob.glob(os.path.join(keep, "*.ptx"))[0]) as f:
            ptx = f.read()
    blocks = dict(re.findall(r"\.entry ([\w$]+)\([^)]*\)\s*\.maxntid (\d+)", ptx))
    said = re.findall(r"Compiling entry function '([\w$]+)'.*?Used (\d+) registers([^\n]*)", done.stderr + done.stdout, re.S)
    rows = []
    for (symbol, registers, rest), name in zip(said, demangle([s for s, _, _ in said]) if said else []):
        if symbol not in blocks:
            return f"{path}: {name} has no __launch_bounds__"
        shared = re.search(r"(\d+) bytes smem", rest)
        shared = int(shared.group(1)) if shared else 0
        block = int(blocks[symbol])
        rows.append([arch, os.path.basename(path), name, block, int(registers), shared,
                     *occupancy(arch, block, int(registers), shared)])
    return rows


def main():
    nvcc = find_nvcc()
    if not nvcc:
        print("skipped: no nvcc (CUDA_HOME, CUDA_PATH, /usr/local/cuda, PATH)")
        return 77
    version = re.search(r"V(\d+\.\d+\.\d+)", subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout).group(1)
    jobs = [(nvcc, path, arch) for path in sorted(glob.glob(os.path.join(ROOT, "kernels/cuda/*.cu"))) for arch in LIMITS]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(lambda job: compile_one(*job), jobs))
    faults = [r for r in results if isinstance(r, str)]
    if faults:
        print("\n".join(faults))
        return 1
    rows = sorted([[str(x) for x in row] for rows in results for row in rows], key=lambda r: (int(r[0]), r[1:]))
    if "--update" in sys.argv:
        with open(TABLE, "w", newline="") as f:
            f.write(f"# nvcc {version}\n")
            csv.writer(f, lineterminator="\n").writerows([COLUMNS, *rows])
        print(f"{TABLE}: {len(rows)} kernels")
        return 0
    if not os.path.exists(TABLE):
        print(f"{TABLE} is missing: make it with resources.py --update")
        return 1
    with open(TABLE, newline="") as f:
        made_with = f.readline().split()[-1]
        old = list(csv.reader(f))[1:]
    if made_with != version:
        print(f"{len(rows)} kernels compile without spills and local memory; the table is nvcc {made_with}'s and this is "
              f"{version}: numbers are not compared")
        return 0
    changed = [f"- {','.join(r)}" for r in old if r not in rows] + [f"+ {','.join(r)}" for r in rows if r not in old]
    if changed:
        print("kernels use other resources than the table says; if that is meant, run resources.py --update:",
              ",".join(COLUMNS), *changed, sep="\n")
        return 1
    print(f"{len(rows)} kernels x architectures: no spills, no local memory, resources as in the table (nvcc {version})")
    return 0


sys.exit(main())
