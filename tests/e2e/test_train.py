"""End to end: kveval train on traces of a tiny random model, and its files as policies of rank, eval and generate."""
import csv
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import time

from common import KVEVAL, MODEL, SOURCE, kveval, load, records, run, run_checks, same, work

INPUT = ("--model", MODEL, "--chat", "plain", "--dtype", "f32")
SINK, RECENT = 4, 16  # protected in training
OBJECTIVES = ("rl", "regression", "topb")


def path(name):
    return os.path.join(work, name)


def traces():
    """Windows of one text: 15 to learn from, 5 held out."""
    if not os.path.isdir(path("train")):
        kveval("trace", *INPUT, "--task", f"text:{work}/text.txt", "--samples", "20", "--window", "120", "--out",
               path("all"))
        files = sorted(os.path.join(d, f) for d, _, names in os.walk(path("all")) for f in names)
        assert len(files) == 20, files
        for i, f in enumerate(files):
            to = path("held" if i % 4 == 0 else "train")
            os.makedirs(to, exist_ok=True)
            shutil.move(f, to)
    return ("--traces", path("train"), "--held-out", path("held"))


def train_flags(name, objective="rl", steps=200, *more):
    return ("train", *traces(), "--out", path(name + ".safetensors"), "--log", path(name + ".csv"), "--objective",
            objective, "--steps", str(steps), "--every", "40", "--width", "32", "--lr", "2e-3", *more)


def log(name):
    with open(path(name + ".csv")) as f:
        return list(csv.DictReader(f))


def rank(name, trace, to="x.safetensors", sink=SINK, recent=RECENT):
    kveval("rank", "--trace", trace, "--policy", f"kvp:{path(name)}.safetensors", "--sink", str(sink), "--recent",
           str(recent), "--out", path(to))
    return load(path(to))


def loss(importance, order):
    return sum(r * importance[j] for r, j in enumerate(order))


def check_learns():
    """Every objective comes closer to the oracle on traces that it has not seen, and the log says what rank measures."""
    for objective in OBJECTIVES:
        done = kveval(*train_flags(objective, objective))
        assert "a random ranking loses" in done.stderr and "steps/s" in done.stderr, done.stderr
        chance = float(done.stderr.split("a random ranking loses ")[1].split()[0])
        rows = log(objective)
        assert [int(r["step"]) for r in rows] == list(range(0, 201, 40)), rows
        first, best = float(rows[0]["held_out"]), float(rows[-1]["best"])
        assert best - 1 < 0.6 * (first - 1) and best - 1 < 0.6 * (chance - 1), (objective, chance, first, best)
        assert best <= min(float(r["held_out"]) for r in rows) + 1e-9
        ratios = []
        for f in sorted(os.listdir(path("held"))):
            _, t = load(os.path.join(path("held"), f))
            L, H, n = t["importance"][0]
            order = rank(objective, os.path.join(path("held"), f))[1]["ranking"][1]
            for h in range(L * H):
                imp = list(t["importance"][1][h * n : (h + 1) * n])
                mine = list(order[h * n : (h + 1) * n])
                protected = [*range(SINK), *range(n - 1, n - 1 - RECENT, -1)]
                assert mine[: SINK + RECENT] == protected
                ideal = protected + sorted(range(SINK, n - RECENT), key=lambda j: -imp[j])
                ratios.append(loss(imp, mine) / loss(imp, ideal))
        measured = sum(ratios) / len(ratios)
        assert abs(measured - best) < 2e-3 * best, (objective, measured, best)  # weights are F16 in the file
        print(f"   {objective}: a random ranking {chance:.4f}, untrained {first:.4f}, best {best:.4f}")


def check_file():
    """Metadata tell what the file is, and for what."""
    trace = load(os.path.join(path("train"), os.listdir(path("train"))[0]))[0]
    with open(path("rl.safetensors"), "rb") as f:
        data = f.read()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    meta = header["__metadata__"]
    assert meta["model"] == trace["model"] and meta["model_sha256"] == trace["model_sha256"], meta
    recipe = json.loads(meta["recipe"])
    assert (meta["layers"], meta["kv_heads"], meta["head_dim"], meta["width"]) == ("2", "2", "16", "32"), meta
    assert (meta["inputs"], meta["position"], meta["objective"], meta["step"]) == ("kvpos", "analytic", "rl", "200")
    assert recipe["lr"] == 0.002 and recipe["traces"] == 15 and recipe["held_out"] == 5, recipe
    assert header["weights"]["dtype"] == "F16" and header["weights"]["shape"][:2] == [2, 2], header["weights"]
    assert not os.path.exists(path("rl.safetensors.checkpoint"))
    assert "nothing is left to do" in kveval(*train_flags("rl")).stderr


def check_eval():
    """The policy in an evaluation: its class, its name, and the same records as from its own rankings in files."""
    kvp = f"kvp:{path('rl')}.safetensors"
    own = records(run("own", "--reward", policy=kvp + ",random"))
    out = path("all2")
    kveval("trace", *INPUT, "--task", f"text:{work}/text.txt,ruler", "--samples", "3", "--window", "96", "--data",
           f"{work}/rows.jsonl", "--out", out)
    for d, _, names in os.walk(out):
        for f in names:
            to = os.path.join("ranked", os.path.relpath(os.path.join(d, f), out))
            os.makedirs(os.path.dirname(path(to)), exist_ok=True)
            rank("rl", os.path.join(d, f), to, 2, 3)
    files = records(run("files", "--reward", policy=f"rankings:{path('ranked')}"))
    mine = {k: r for k, r in own.items() if k[2] == "kvp:rl"}
    assert len(mine) == len(files) == 30
    for (task, sample, _, budget), r in mine.items():
        f = files[(task, sample, f"rankings:{path('ranked')}", budget)]
        assert r["info"] == "attention-free", r
        for field in ("prediction", "nll_sum", "score", "reward_heads", "reward_sum", "kept_min"):
            assert r[field] == f[field], (task, sample, budget, field)
    for threads in ("1", "3"):
        same(mine, records(run("threads" + threads, "--reward", "--threads", threads, policy=kvp)), "threads " + threads)
    said = subprocess.run([KVEVAL, "generate", *INPUT, "--prompt", "abc de fgh " * 8, "--policy", kvp, "--budget", "24",
                           "--max-new", "4"], capture_output=True)  # what random weights say is no UTF-8
    assert said.returncode == 0 and b"kept 24 of" in said.stderr and b"(kvp:rl)" in said.stderr, said.stderr
    assert "kvp:FILE" in kveval("ls", "policies").stdout


def check_files_of_one_name():
    """Another file of the same name is told apart: in one command, and in a folder with results."""
    kvp = f"kvp:{path('rl')}.safetensors"
    os.makedirs(path("other"), exist_ok=True)
    shutil.copy(path("topb.safetensors"), path("other/rl.safetensors"))
    other = f"kvp:{path('other/rl.safetensors')}"
    both = subprocess.run([KVEVAL, "eval", *INPUT, "--task", f"text:{work}/text.txt", "--window", "96", "--budget", "9",
                           "--policy", f"{kvp},{other}", "--out", path("both")], capture_output=True, text=True)
    assert both.returncode == 2 and "named twice" in both.stderr, both.stderr
    run("pinned", policy=kvp, budget="9")
    run("pinned", policy=kvp + f",kvp:{path('topb')}.safetensors", budget="9,17")
    done = subprocess.run([KVEVAL, "eval", *INPUT, "--task", f"text:{work}/text.txt", "--window", "96", "--budget", "9",
                           "--sink", "2", "--recent", "3", "--samples", "3", "--data", f"{work}/rows.jsonl", "--policy",
                           other, "--out", path("pinned")], capture_output=True, text=True)
    assert done.returncode == 2 and "another file named 'kvp:rl'" in done.stderr, done.stderr


def check_another_model():
    tied = os.path.join(SOURCE, "tests/golden/models/llama_tied")  # one KV head
    same_shape = os.path.join(SOURCE, "tests/golden/models/qwen2")
    kvp = f"kvp:{path('rl')}.safetensors"
    for model, words in ((tied, "this one has 2, 1 and 16"), (same_shape, "another model file")):
        for verb in (("eval", "--task", f"text:{work}/text.txt", "--window", "96", "--out", path("wrong")),
                     ("generate", "--prompt", "abc de fgh " * 8)):
            done = kveval(*verb, "--model", model, "--chat", "plain", "--policy", kvp, "--budget", "9", code=4)
            assert words in done.stderr and "rl.safetensors was trained for another" in done.stderr, done.stderr
    assert not os.path.exists(path("wrong"))
    kveval("trace", "--model", tied, "--chat", "plain", "--dtype", "f32", "--prompt-file", path("short.txt"),
           "--max-new", "4", "--out", path("tied.safetensors"))
    done = kveval("rank", "--trace", path("tied.safetensors"), "--policy", kvp, "--out", path("no.safetensors"), code=4)
    assert "was trained for another model" in done.stderr, done.stderr
    assert not os.path.exists(path("no.safetensors"))
    os.makedirs(path("mixed"), exist_ok=True)
    shutil.copy(path("tied.safetensors"), path("mixed/b.safetensors"))
    shutil.copy(os.path.join(path("train"), os.listdir(path("train"))[0]), path("mixed/a.safetensors"))
    done = kveval("train", "--traces", path("mixed"), "--out", path("m.safetensors"), code=4)
    assert "one model's traces" in done.stderr, done.stderr


def check_kill():
    """kill -9 soon after a checkpoint or before one, then the same command, with other thread counts: the same bytes as
    in one go."""
    rng = random.Random(int(os.environ.get("KVEVAL_TEST_SEED", "1")))
    steps, kills = 800, 0
    checkpoint = path("killed.safetensors.checkpoint")
    kveval(*train_flags("whole", "rl", steps, "--threads", "2"))
    for attempt in range(8):
        flags = train_flags("killed", "rl", steps, "--threads", str(1 + attempt % 3))
        before = os.stat(checkpoint).st_mtime_ns if os.path.exists(checkpoint) else 0
        p = subprocess.Popen([KVEVAL, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while attempt % 4 and p.poll() is None and not (os.path.exists(checkpoint)
                                                        and os.stat(checkpoint).st_mtime_ns > before):
            time.sleep(0.001)
        time.sleep(rng.random() * 0.03)
        kills += p.poll() is None
        p.send_signal(signal.SIGKILL)
        p.wait()
    assert kills >= 3, f"only {kills} of 8 kills met a running process"
    kveval(*train_flags("killed", "rl", steps))
    with open(path("whole.safetensors"), "rb") as f, open(path("killed.safetensors"), "rb") as g:
        assert f.read() == g.read(), "the weights differ after kills"
    strip = [{k: v for k, v in r.items() if k != "seconds"} for r in log("whole")]
    assert strip == [{k: v for k, v in r.items() if k != "seconds"} for r in log("killed")]


def check_interrupt():
    flags = train_flags("stopped", "rl", 4000)
    p = subprocess.Popen([KVEVAL, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while p.poll() is None and not os.path.exists(path("stopped.safetensors.checkpoint")):
        time.sleep(0.001)
    p.send_signal(signal.SIGINT)
    err = p.communicate()[1]
    assert p.returncode == 85 and "goes on from here" in err, (p.returncode, err)
    assert not os.path.exists(path("stopped.safetensors"))
    done = kveval(*train_flags("stopped", "rl", 4000, "--lr", "1e-3"), code=2)
    assert "lr = 0.002, the command says 0.001" in done.stderr, done.stderr


def recipe(*args, **env):
    return subprocess.run(["bash", "bench/train_kvp.sh", *args], cwd=SOURCE, text=True, capture_output=True, timeout=500,
                          env={**os.environ, "KVEVAL": KVEVAL, "MAX_MINUTES": "8", **env})


def check_recipe():
    """bench/train_kvp.sh from a text to weights that evaluate; again, nothing is done twice."""
    with open(path("held.txt"), "w") as f:
        f.write("another text, which is not the one to learn from " * 12)
    env = {"MODEL": MODEL, "OUT": path("recipe"), "TEXTS": path("text.txt"), "HELD_TEXTS": path("held.txt"),
           "LENGTH": "96", "STEPS": "6", "WIDTH": "16"}
    done = recipe("s", **env)
    weights = path("recipe/kvp_s.safetensors")
    assert done.returncode == 0 and os.path.isfile(weights), done.stdout + done.stderr
    with open(weights, "rb") as f:
        first = f.read()
    made = {f: os.stat(f).st_mtime_ns for d, _, names in os.walk(path("recipe")) for f in [os.path.join(d, n) for n in names]}
    again = recipe("s", **env)
    assert again.returncode == 0, again.stderr
    assert all(os.stat(f).st_mtime_ns == t for f, t in made.items() if f.endswith(".safetensors"))
    with open(weights, "rb") as f:
        assert f.read() == first
    run("recipe-eval", policy=f"kvp:{weights}", budget="9")
    assert recipe("x").returncode == 2


def check_recipe_ruler():
    """The same of kvp_r, on the default model where it is there."""
    if subprocess.run([KVEVAL, "info", "--model", "smollm2"], capture_output=True).returncode:
        print("skipped: the default model is not cached (bash bench/fetch_model.sh)")
        return
    done = recipe("r", MODEL="smollm2", OUT=path("ruler"), LENGTH="512", TASKS="niah_single_1", SAMPLES="1", HELD_OUT="1",
                  STEPS="2")
    assert done.returncode == 0 and os.path.getsize(path("ruler/kvp_r.safetensors")) < 5e6, done.stdout + done.stderr


def check_shipped():
    """Weights that come with the program: small, whole, for one model each; another model says that there are none."""
    folder = os.path.join(SOURCE, "policies/weights")
    names = sorted(f for f in os.listdir(folder) if f.endswith(".safetensors"))
    assert names, folder
    for name in names:
        with open(os.path.join(folder, name), "rb") as f:
            data = f.read()
        meta = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"]
        assert len(data) <= 5e6 and len(meta["model_sha256"]) == 64 and json.loads(meta["recipe"]), name
        assert name.split("-")[0] in ("kvp_r", "kvp_r4k", "kvp_s"), name
    refused = kveval("eval", *INPUT, "--task", f"text:{work}/text.txt", "--policy", "kvp_r", "--budget", "9", "--out",
                     path("shipped"), code=2)
    assert "none of its files" in refused.stderr, refused.stderr


def check_bad_input():
    base = ("train", *traces(), "--out", path("bad.safetensors"))
    for flags, words in ((("--objective", "reinforce"), "rl, regression or topb"), (("--inputs", "vk"), "kvpos"),
                         (("--width", "33"), "multiples of 16"), (("--width", "512"), "16 to 256"),
                         (("--lr", "0"), "--lr"), (("--lr", "1e-3x"), "--lr"), (("--lr", "nan"), "--lr"),
                         (("--steps", "0"), "--steps"), (("--samples", "1"), "--samples"), (("--every", "0"), "--every"),
                         (("--nonsense", "1"), "nonsense")):
        assert words in kveval(*base, *flags, code=2).stderr, flags
    assert "--traces and --out" in kveval("train", code=2).stderr
    assert "portable, avx2" in kveval(*base, code=2, env={"KVEVAL_ISA": "sse9"}).stderr
    kveval(*base, "--steps", "3", env={"KVEVAL_ISA": "portable"})
    assert "no .safetensors" in kveval("train", "--traces", path("short"), "--out", path("bad.safetensors"), code=4).stderr
    with open(path("rl.safetensors"), "rb") as f:
        data = f.read()
    with open(path("cut.safetensors"), "wb") as f:
        f.write(data[: len(data) - 5])
    trace = os.path.join(path("held"), os.listdir(path("held"))[0])
    done = kveval("rank", "--trace", trace, "--policy", f"kvp:{path('cut.safetensors')}", "--out", path("n"), code=4)
    assert "cut.safetensors" in done.stderr, done.stderr
    done = kveval("rank", "--trace", trace, "--policy", f"kvp:{trace}", "--out", path("n"), code=4)
    assert "kveval train writes such files" in done.stderr, done.stderr
    assert not os.path.exists(path("n"))


def inputs():
    rng = random.Random(7)
    words = [rng.choice("abcdefghij") * rng.randint(1, 4) for _ in range(4000)]
    with open(work + "/text.txt", "w") as f:
        f.write(" ".join(words))
    with open(path("short.txt"), "w") as f:
        f.write("abc de fgh " * 4)
    os.makedirs(path("short"))
    with open(work + "/rows.jsonl", "w") as f:
        for i in range(6):
            f.write(json.dumps({"context": " ".join(words[40 * i : 40 * i + 12]), "question": " what?",
                                "answer_prefix": " It is", "answer": ["a"], "task": "vt", "max_new_tokens": 6}) + "\n")


run_checks(globals(), inputs)
