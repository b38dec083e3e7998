"""End to end: traces, rankings of traces, and evaluations of rankings that were made elsewhere."""
import array
import json
import os
import struct

from common import MODEL, kveval, load, records, run, run_checks, work

TASK = f"text:{work}/text.txt,ruler"
INPUT = ("--model", MODEL, "--chat", "plain", "--dtype", "f32")


def save(path, name, shape, values):
    body = array.array("i", values).tobytes()
    header = json.dumps({name: {"dtype": "I32", "shape": shape, "data_offsets": [0, len(body)]}}).encode()
    header += b" " * (-len(header) % 8)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + body)


def traces():
    out = os.path.join(work, "traces")
    if not os.path.isdir(out):
        kveval("trace", *INPUT, "--task", TASK, "--samples", "3", "--window", "96", "--data", f"{work}/rows.jsonl",
               "--queries", "--out", out)
    return sorted(os.path.join(d, f) for d, _, files in os.walk(out) for f in files)


def check_trace():
    assert len(traces()) == 6, traces()
    for path in traces():
        meta, t = load(path)
        L, H, n, D = t["keys"][0]
        assert (L, H, D) == (2, 2, 16) and t["values"][0] == t["keys"][0] and t["importance"][0] == [L, H, n]
        assert list(t["positions"][1]) == list(range(n)) and t["tokens"][0] == [n]
        assert t["queries"][0] == [L, min(n, 64), 4, D]
        future = int(meta["n_future"])
        for h in range(L * H):  # a token of the future spends at most 1 on the context, per query head
            total = sum(t["importance"][1][h * n : (h + 1) * n])
            assert 0 < total <= 2 * future, (path, h, total)


def check_text():
    with open(work + "/prompt.txt", "w") as f:
        f.write("abc de fgh " * 12)
    for dtype in ("f32", "bf16"):
        kveval("trace", "--model", MODEL, "--chat", "plain", "--dtype", dtype, "--prompt-file", work + "/prompt.txt",
               "--max-new", "5", "--out", f"{work}/{dtype}.safetensors")
    f32, bf16 = load(work + "/f32.safetensors")[1], load(work + "/bf16.safetensors")[1]
    assert "queries" not in f32
    for name in ("keys", "values"):
        apart = max(abs(a - b) for a, b in zip(f32[name][1], bf16[name][1]))
        assert 0 < apart < 0.05 * max(map(abs, f32[name][1])), (name, apart)
        bits = struct.unpack(f"<{len(bf16[name][1])}I", bf16[name][1].tobytes())
        assert all(b & 0xFFFF == 0 for b in bits), name  # what a bf16 cache holds


def check_rankings_of_rank():
    """Every policy, ranked from its traces and evaluated from files, answers and loses as the policy itself does."""
    for policy in ("random", "streaming_llm", "knorm", "keydiff", "lagkv", "snapkv", "tova", "oracle"):
        out = os.path.join(work, "rankings", policy)
        for path in traces():
            to = os.path.join(out, os.path.relpath(path, os.path.join(work, "traces")))
            os.makedirs(os.path.dirname(to), exist_ok=True)
            kveval("rank", "--trace", path, "--policy", policy, "--sink", "2", "--recent", "3", "--out", to)
            meta, t = load(to)
            L, H, n = t["ranking"][0]
            assert meta["policy"] == policy and meta["sink"] == "2"
            for h in range(L * H):
                row = list(t["ranking"][1][h * n : (h + 1) * n])
                assert sorted(row) == list(range(n)), (to, h)
                assert row[:5] == [0, 1, n - 1, n - 2, n - 3], (to, h, row[:5])
        own = records(run(f"own-{policy}", "--reward", policy=policy))
        files = records(run(f"files-{policy}", "--reward", policy=f"rankings:{out}"))
        assert len(own) == len(files) == 30
        for (task, sample, _, budget), r in own.items():
            f = files[(task, sample, f"rankings:{out}", budget)]
            assert f["info"] is None, f["info"]
            for field in ("prediction", "nll_sum", "score", "reward_heads", "reward_sum", "kept_min"):
                assert r[field] == f[field], (policy, task, sample, budget, field)


def check_rankings_of_others():
    """--sink 0 --recent 0: the file's order is the order. Newest first equals streaming_llm without sinks."""
    out = os.path.join(work, "by-hand")
    for path in traces():
        L, H, n, _ = load(path)[1]["keys"][0]
        save(os.path.join(out, os.path.relpath(path, os.path.join(work, "traces"))), "ranking", [L, H, n],
             [j for _ in range(L * H) for j in [*range(4), *range(n - 1, 3, -1)]])
    flags = ("--reward", "--sink", "0", "--recent", "0")
    own = records(run("own-streaming", *flags, policy="streaming_llm"))
    files = records(run("hand-streaming", *flags, policy=f"rankings:{out}"))
    for (task, sample, _, budget), r in own.items():
        f = files[(task, sample, f"rankings:{out}", budget)]
        for field in ("prediction", "nll_sum", "reward_heads"):
            assert r[field] == f[field], (task, sample, budget, field)


def failing(name, make):
    """One sample whose ranking is wrong: its cells fail and say why, the other samples are fine."""
    out = os.path.join(work, name)
    for path in traces():
        L, H, n, _ = load(path)[1]["keys"][0]
        good = [j for _ in range(L * H) for j in range(n)]
        shape, values = ([L, H, n], good) if path != traces()[-1] else make([L, H, n], good)
        save(os.path.join(out, os.path.relpath(path, os.path.join(work, "traces"))), "ranking", shape, values)
    rows = records(run("run-" + name, policy=f"rankings:{out}", budget="9", code=3))
    bad = [r for r in rows.values() if r["status"] == "failed"]
    assert len(rows) == 6 and len(bad) == 1, rows
    return bad[0]["reason"]


def check_bad_rankings():
    assert "token 0 is there twice" in failing("twice", lambda s, v: (s, [0, 0] + v[2:]))
    assert "out of range" in failing("range", lambda s, v: (s, v[:-1] + [s[2]]))
    assert "this sample needs" in failing("short", lambda s, v: ([s[0], s[1], s[2] - 1], v[: s[0] * s[1] * (s[2] - 1)]))
    bad = kveval("eval", *INPUT, "--task", TASK, "--data", work + "/rows.jsonl", "--budget", "9", "--policy",
                 "rankings:/nonexistent", "--out", work + "/bad", code=4)
    assert "/nonexistent" in bad.stderr


def check_bad_traces():
    path, to = traces()[0], work + "/x.safetensors"
    assert "unknown" in kveval("rank", "--trace", path, "--policy", "knrm", "--out", to, code=2).stderr
    assert "--queries" in kveval("rank", "--trace", work + "/f32.safetensors", "--policy", "snapkv", "--out", to,
                                 code=2).stderr
    with open(path, "rb") as f:
        data = f.read()
    with open(work + "/cut.safetensors", "wb") as f:
        f.write(data[: len(data) // 2])
    assert "cut.safetensors" in kveval("rank", "--trace", work + "/cut.safetensors", "--policy", "knorm", "--out", to,
                                       code=4).stderr
    start = 8 + struct.unpack("<Q", data[:8])[0]
    nan = struct.pack("<f", float("nan"))
    with open(work + "/nan.safetensors", "wb") as f:
        f.write(data[:start] + nan * ((len(data) - start) // 4))
    assert "nan" in kveval("rank", "--trace", work + "/nan.safetensors", "--policy", "knorm", "--out", to, code=4).stderr
    assert not os.path.exists(to)
    kveval("trace", *INPUT, "--out", to, code=2)
    kveval("trace", *INPUT, "--prompt-file", work + "/nothing", "--out", to, code=4)


run_checks(globals())
