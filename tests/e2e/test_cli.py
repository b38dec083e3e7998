"""End to end: kveval eval on a tiny random model. Random weights answer nonsense, but deterministically: what is tested
is the machinery around the model."""
import csv
import hashlib
import json
import os
import random
import signal
import subprocess
import time

from common import KVEVAL, MODEL, kveval, records, run, run_checks, same, work


def check_help():
    kveval("--help")
    for verb in ("info", "generate", "logits", "trace", "rank", "tokens", "train", "eval", "report", "bench", "ls"):
        assert "usage" in kveval(verb, "--help").stdout, verb
    kveval(code=2)
    kveval("evil", code=2)


def check_sweep():
    rows = records(run("base", "--reward"), drop=set())
    n_samples = len({(k[0], k[1]) for k in rows})
    assert n_samples == 6 and len(rows) == n_samples * (17 * 5 + 1), (n_samples, len(rows))
    for key, r in rows.items():
        assert r["status"] == "ok" and r["n_prefills"] == 1, key
        expected = r["n_context"] if r["budget"] is None else min(r["budget"], r["n_context"])
        uniform = r["allocation"] == "uniform"
        assert uniform == (r["policy"] not in ("pyramidkv", "adakv")), key
        assert r["kept_min"] <= expected <= r["kept_max"] and (r["kept_min"] == r["kept_max"] or not uniform), key
        assert r["kv_bytes"] == 2 * 2 * expected * (2 * 16 * 4), key  # layers, KV heads; keys and values, D, f32
        full = rows[(key[0], key[1], "full", None)]
        evicts = r["budget"] is not None and r["budget"] < r["n_context"]
        if not evicts:
            for f in ("prediction", "score", "nll_sum"):
                assert r[f] == full[f], (key, f)
        if evicts:
            oracle = rows[(key[0], key[1], "oracle", r["budget"])]
            pairs = zip(r["reward_heads"], oracle["reward_heads"])
            assert not uniform or all(mine >= best - 1e-9 for mine, best in pairs), f"{key} loses less than the oracle"
            assert 0 <= r["reward_lost"] <= 1, key
        if r["metric"] == "nll":
            assert r["prediction"] is None and r["n_scored"] == 24, key
        else:
            assert r["nll_sum"] is None and r["n_generated"] is not None, key


def check_reward_of_heads():
    """What the report says of each head is the mean of what the records say."""
    out = run("heads", "--reward", policy="knorm,snapkv,oracle,full", budget="4,9,500")
    kveval("report", out)
    with open(out + "/manifest.json") as f:
        manifest = json.load(f)
    assert (manifest["layers"], manifest["kv_heads"]) == ("2", "2"), manifest
    lost = {}
    for (task, _, policy, budget), r in records(out).items():
        lost.setdefault((task.split("/")[0], policy, budget), []).append(r["reward_heads"] or [0] * 4)
    with open(out + "/report/reward_heads.csv", newline="") as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == 4 * sum(budget is not None for _, _, budget in lost) > 0, len(rows)
    for row in rows:
        samples = lost[row["suite"], row["policy"], int(row["budget"])]
        head = 2 * int(row["layer"]) + int(row["kv_head"])
        mean = sum(s[head] for s in samples) / len(samples)
        assert int(row["n"]) == len(samples) == 3 and abs(float(row["mean_lost"]) - mean) < 1e-12, (row, mean)
    with open(out + "/report/index.html") as f:
        assert "<title>layer 1, KV head 1: " in f.read()


def check_same_however_computed():
    base = records(os.path.join(work, "base"))
    same(base, records(run("chunk", "--reward", "--chunk", "64")), "chunk 64")
    same(base, records(run("thread", "--reward", "--threads", "1")), "one thread")
    same(base, records(run("turns", "--reward", "--fork-mib", "1")), "forks in turns")
    alone = records(run("alone", "--reward", policy="knorm", budget="9"))
    same({k: v for k, v in base.items() if k[2] == "knorm" and k[3] == 9}, alone, "a cell alone")
    here = json.loads(kveval("ls", "devices", "--json").stdout)[0]["device"]
    for isa in ("portable", "avx2"):
        if isa == "avx2" and "avx" not in here:
            print("skipped: this processor has no avx2")
            continue
        os.environ["KVEVAL_ISA"] = isa
        other = records(run(isa, "--reward"))
        del os.environ["KVEVAL_ISA"]
        assert other.keys() == base.keys()
        for k, r in base.items():  # another order of sums: close, not equal
            if r["nll_sum"] is not None and k[2] == "full":
                assert abs(r["nll_sum"] - other[k]["nll_sum"]) < 1e-4 * r["nll_sum"], (isa, k)


def check_question_out():
    rows = records(run("qout", "--question", "out", task="ruler"))
    inside = records(os.path.join(work, "base"))
    for k, r in rows.items():
        assert r["question_in_prefill"] is False and r["n_context"] < inside[k]["n_context"], k


def check_resume():
    out = run("resume", "--reward", budget="4,9")
    before = records(out, drop=set())
    out = run("resume", "--reward")
    after = records(out, drop=set())
    for k, r in before.items():
        assert after[k] == r, f"{k} was computed again"
    same(records(os.path.join(work, "base")), records(out), "resumed with more budgets")
    done = subprocess.run([KVEVAL, "eval", "--model", MODEL, "--chat", "plain", "--task", "ruler", "--budget", "4",
                           "--data", f"{work}/rows.jsonl", "--dtype", "f32", "--sink", "5", "--out", out],
                          capture_output=True, text=True)
    assert done.returncode == 2 and "sink" in done.stderr, done.stderr


def check_kill():
    """kill -9 at random moments, then the same command: as if nothing had happened."""
    rng = random.Random(int(os.environ.get("KVEVAL_TEST_SEED", "1")))
    out = os.path.join(work, "killed")
    start = time.time()
    run("timing", "--reward")
    whole = time.time() - start
    args = [KVEVAL, "eval", "--model", MODEL, "--chat", "plain", "--task", f"text:{work}/text.txt,ruler", "--policy",
            "all", "--budget", "4,9,17,40,500", "--samples", "3", "--window", "96", "--data", f"{work}/rows.jsonl",
            "--dtype", "f32", "--sink", "2", "--recent", "3", "--out", out, "--quiet", "--reward"]
    kills = 0
    for _ in range(20):
        p = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.random() * whole)
        kills += p.poll() is None
        p.send_signal(signal.SIGKILL)
        p.wait()
        if rng.random() < 0.5 and os.path.isdir(os.path.join(out, "seg")):  # a torn last line
            for s in os.listdir(os.path.join(out, "seg")):
                if s.endswith(".open") and rng.random() < 0.5:
                    with open(os.path.join(out, "seg", s), "r+b") as f:
                        size = f.seek(0, 2)
                        f.truncate(max(0, size - rng.randint(0, 200)))
    assert kills >= 3, f"only {kills} of 20 kills met a running process"
    subprocess.run(args, check=True, stdout=subprocess.DEVNULL)
    same(records(os.path.join(work, "base")), records(out), "after kills")


def check_interrupt():
    out = os.path.join(work, "interrupted")
    args = [KVEVAL, "eval", "--model", MODEL, "--chat", "plain", "--task", f"text:{work}/text.txt", "--budget", "4",
            "--samples", "50", "--window", "96", "--dtype", "f32", "--out", out, "--quiet"]
    p = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while p.poll() is None and not (os.path.isdir(out + "/seg") and os.listdir(out + "/seg")):
        time.sleep(0.001)
    p.send_signal(signal.SIGINT)
    err = p.communicate()[1]
    assert p.returncode in (0, 85), (p.returncode, err)
    if p.returncode == 85:
        assert "goes on from here" in err, err
    subprocess.run(args, check=True, stdout=subprocess.DEVNULL)
    assert len({k[1] for k in records(out)}) == 50


def check_plan_log_replay():
    """--dry-run writes nothing and shows the prompt; --log-samples keeps it; --config runs a manifest again."""
    flags = ("--model", MODEL, "--chat", "plain", "--task", "ruler", "--data", f"{work}/rows.jsonl", "--budget", "4,9",
             "--policy", "knorm,full", "--dtype", "f32", "--sink", "1", "--recent", "0", "--reward")
    out = os.path.join(work, "logged")
    plan = kveval("eval", *flags, "--out", out, "--limit", "2", "--dry-run").stdout
    assert not os.path.exists(out) and "2 samples" in plan and "= 6" in plan and "what?" in plan, plan
    kveval("eval", *flags, "--out", out, "--limit", "2", "--log-samples", "--quiet")
    rows = records(out)
    assert len(rows) == 6
    for (task, sample, _, _), r in rows.items():
        with open(os.path.join(out, "samples", task, sample + ".json")) as f:
            logged = json.load(f)
        assert logged["prompt_sha256"] == r["prompt_sha256"] and len(logged["context_ids"]) == r["n_context"]
        assert logged["context"].endswith("what?") and logged["tail"].endswith("It is"), logged
        ids = b"".join(i.to_bytes(4, "little", signed=True) for i in logged["context_ids"] + [-1] + logged["tail_ids"])
        assert hashlib.sha256(ids).hexdigest() == r["prompt_sha256"]
    again = os.path.join(work, "replayed")
    kveval("eval", "--config", out + "/manifest.json", "--out", again, "--quiet")
    same(rows, records(again), "a replayed manifest")
    more = os.path.join(work, "replayed-more")
    kveval("eval", "--config", out + "/manifest.json", "--out", more, "--budget", "9", "--samples", "1", "--quiet")
    same({k: r for k, r in rows.items() if k[3] != 4 and k[1] == "vt-line1"}, records(more), "the command line wins")
    assert "nothing.json" in kveval("eval", "--config", work + "/nothing.json", "--out", more, code=4).stderr


def check_listings():
    for what, name in (("tasks", "ruler-LENGTH/vt"), ("policies", "keydiff"), ("models", ""), ("devices", "cpu")):
        text, data = kveval("ls", what).stdout, json.loads(kveval("ls", what, "--json").stdout)
        assert name in text and isinstance(data, list) and all(str(next(iter(d.values()))) in text for d in data)
    kveval("ls", "tsks", code=2)


def check_bad_input():
    base = ["eval", "--model", MODEL, "--chat", "plain", "--task", f"text:{work}/text.txt", "--window", "96", "--out",
            os.path.join(work, "bad"), "--quiet"]
    for budget in ("0", "-3", "x", "25%", "0.25", "", "4,,8", "99999999999999999999"):
        kveval(*base, "--budget", budget, code=2)
    assert "absolute" in kveval(*base, "--budget", "0.25", code=2).stderr
    assert "knorm" in kveval(*base, "--budget", "4", "--policy", "knrm", code=2).stderr
    assert "ruler" in kveval("eval", "--model", MODEL, "--task", "rulr-4k", "--budget", "4", "--chat", "plain",
                             "--out", work + "/bad", code=2).stderr
    kveval(*base, "--budget", "4", "--nonsense", "1", code=2)
    kveval(*base, "--budget", "4", "--dtype", "f16", code=2)
    kveval("eval", "--model", work + "/none.gguf", "--task", "ruler-1k", "--budget", "4", "--out", work + "/bad", code=4)
    with open(work + "/cut.gguf", "wb") as f:
        f.write(b"GGUF\x03\x00\x00\x00\xff\xff\xff\xff")
    assert "cut.gguf" in kveval("info", "--model", work + "/cut.gguf", code=4).stderr
    with open(work + "/file", "w") as f:
        f.write("x")
    kveval("eval", "--model", MODEL, "--chat", "plain", "--task", f"text:{work}/text.txt", "--window", "96",
           "--budget", "4", "--out", work + "/file/out", code=4)
    long = kveval("generate", "--model", MODEL, "--chat", "plain", "--prompt", "a " * 300, code=2)
    assert "context" in long.stderr


def check_failed_sample():
    """One sample does not fit the model's context: it is a failed record, the others are fine, the exit code says so."""
    out = os.path.join(work, "failed")
    with open(work + "/mixed.jsonl", "w") as f:
        for text in ("a bb c dd", "e " * 400, "f gg h"):
            f.write(json.dumps({"context": text, "question": "?", "answer_prefix": " x", "answer": ["a"], "task": "vt",
                                "max_new_tokens": 4}) + "\n")
    kveval("eval", "--model", MODEL, "--chat", "plain", "--task", "ruler", "--data", work + "/mixed.jsonl", "--budget",
           "3", "--policy", "knorm,full", "--out", out, "--quiet", code=3)
    rows = records(out)
    bad = [r for r in rows.values() if r["status"] == "failed"]
    assert len(rows) == 6 and len(bad) == 2 and all("context" in r["reason"] and r["score"] is None for r in bad), bad


def check_full_disk():
    """A file-size limit stands in for a full disk: a clear error, and what was written stays."""
    out = os.path.join(work, "full")
    args = [KVEVAL, "eval", "--model", MODEL, "--chat", "plain", "--task", f"text:{work}/text.txt", "--budget",
            "4,9,17", "--samples", "10", "--window", "96", "--dtype", "f32", "--out", out, "--quiet"]
    limited = subprocess.run(["bash", "-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "-", *args],
                             capture_output=True, text=True)
    assert limited.returncode == 4 and "make room" in limited.stderr, (limited.returncode, limited.stderr)
    subprocess.run(args, check=True, stdout=subprocess.DEVNULL)
    assert len(records(out)) == 10 * (17 * 3 + 1)


run_checks(globals())
