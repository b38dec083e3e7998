"""The JSON file of a run of tests/gpu/run.sh. Usage: result.py WORK DEVICE OUT, where WORK holds steps.tsv and the benches' lines,
and an empty OUT stands for bench/results/gpu-DEVICE.json. Prints the kernels' shares of their floors."""
import glob
import json
import os
import platform
import re
import subprocess
import sys
import time


def said(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None


def rows(path):
    with open(path) as f:
        return [json.loads(line) for line in f if line.endswith("}\n")]


def main():
    work, device, out = sys.argv[1:4]
    name = re.sub(r"[^a-z0-9]+", "-", device.split(", ")[1].lower()).strip("-")
    out = out or f"bench/results/gpu-{name}.json"
    with open(os.path.join(work, "steps.tsv")) as f:
        steps = [dict(zip(("step", "status", "seconds", "note"), line.rstrip("\n").split("\t"))) for line in f]
    for s in steps:
        s["seconds"] = int(s["seconds"])
    kernels = [r for path in sorted(glob.glob(os.path.join(work, "kernels-*.jsonl"))) for r in rows(path)]
    e2e = [r for path in glob.glob(os.path.join(work, "e2e.jsonl")) for r in rows(path)]
    commit = said("git", "rev-parse", "--short=12", "HEAD")
    changed = bool(said("git", "status", "--porcelain", "--untracked-files=no")) if commit else None
    result = {"what": "tests/gpu/run.sh", "date": time.strftime("%Y-%m-%d", time.gmtime()), "device": device,
              "driver": said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
              "commit": commit, "changed": changed,
              "system": platform.release(), "steps": steps, "kernels": kernels, "e2e": e2e}
    os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
    with open(out, "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    for r in kernels:
        print(f"{r['shape']:12} {r['op']:17} {r['size']:32} {r['cache']:4} {1000 * r['median_ms']:10.1f} us, floor "
              f"{1000 * r['floor_ms']:10.1f} us ({r['bound']}): {r['share_pct']:5.1f} %")
    print(f"{len(steps)} steps, {sum(s['status'] == 'FAILED' for s in steps)} failed; {out}")


main()
