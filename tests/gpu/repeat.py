"""One command run again and again gives the same bits. Usage: repeat.py KVEVAL SOURCE_DIR [BACKEND=cuda] [RUNS=20]; half of
the runs in bf16. What is compared is every field of every record but the times."""
import os
import sys

sys.path.insert(0, os.path.join(sys.argv[2], "tests/e2e"))
from common import records, run, run_checks, same  # noqa: E402

backend = sys.argv[3] if len(sys.argv) > 3 else "cuda"
runs = int(sys.argv[4]) if len(sys.argv) > 4 else 20


def check_same_bits():
    for dtype in ("f32", "bf16"):
        first = None
        for i in range(runs // 2):
            rows = records(run(f"{dtype}-{i}", "--backend", backend, "--dtype", dtype, "--reward"))
            assert rows and all(r["status"] == "ok" for r in rows.values()), f"{dtype}: a cell failed"
            first = first or rows
            same(first, rows, f"{dtype}: run {i + 1} of {runs // 2}")
        print(f"   {dtype}: {runs // 2} runs of {len(first)} cells: the same bits")


run_checks(globals())
