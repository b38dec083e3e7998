"""A decode step that is recorded once and repeated gives what its ops give one by one. Usage: graphs.py KVEVAL SOURCE_DIR
[BACKEND=cuda]. What is compared is every field of every record but the times."""
import os
import sys

sys.path.insert(0, os.path.join(sys.argv[2], "tests/e2e"))
from common import records, run, run_checks, same  # noqa: E402

backend = sys.argv[3] if len(sys.argv) > 3 else "cuda"


def check_on_and_off():
    for dtype in ("f32", "bf16"):
        rows = {}
        for graphs in ("on", "off"):
            os.environ["KVEVAL_CUDA_GRAPHS"] = graphs
            rows[graphs] = records(run(f"{dtype}-{graphs}", "--backend", backend, "--dtype", dtype))
        assert rows["on"] and all(r["status"] == "ok" for r in rows["on"].values()), f"{dtype}: a cell failed"
        same(rows["on"], rows["off"], f"{dtype}: graphs on and off")
        print(f"   {dtype}: {len(rows['on'])} cells: the same bits")


run_checks(globals())
