"""End to end: kveval eval --evict-every N, where caches are cut to their budgets while decoding, too."""
import json
import os

from common import MODEL, kveval, records, run, run_checks, same, work

CAN = ("random", "streaming_llm", "knorm", "keydiff", "lagkv", "cur")
BUDGETS = "4,9,75,500"


def manifest(out):
    with open(os.path.join(out, "manifest.json")) as f:
        return json.load(f)


def check_help():
    text = kveval("eval", "--help").stdout
    assert "--evict-every" in text and "0: only once" in text, text


def check_records():
    """'all' is what can; the fields say what was done; a window's cache is full as often as its tokens say."""
    off, on = records(run("off", budget=BUDGETS, policy=",".join(CAN + ("full",)))), records(run("on", "--evict-every", "5", budget=BUDGETS))
    assert off.keys() == on.keys() and {k[2] for k in on} == {*CAN, "full"}, on.keys()
    changed = 0
    for k, r in on.items():
        if k[2] == "full":
            assert r["evict_every"] is None and r["n_evictions"] is None and r == off[k], (k, r)
            continue
        assert off[k]["evict_every"] is None and off[k]["n_evictions"] is None, k
        assert r["evict_every"] == 5 and r["kept_min"] == r["kept_max"] == min(r["budget"], r["n_context"]), (k, r)
        if r["metric"] == "nll":
            assert (r["n_context"], r["n_scored"]) == (72, 24), (k, r)  # the 6th token after a cut makes the next one due
            assert r["n_evictions"] == {4: 4, 9: 4, 75: 4, 500: 0}[r["budget"]], (k, r)
            changed += r["nll_sum"] != off[k]["nll_sum"]
        if r["budget"] == 500:
            assert {**r, "evict_every": None, "n_evictions": None} == off[k], k
    assert changed == 3 * len(CAN) * 3, changed


def check_never_reached():
    """Rows in the order of their positions instead of their ranks: nothing else differs."""
    off, on = records(os.path.join(work, "off")), records(run("never", "--evict-every", "100000", budget=BUDGETS))
    for k, r in on.items():
        assert k[2] == "full" or r["n_evictions"] == 0, k
        assert r["prediction"] == off[k]["prediction"], k
        if r["nll_sum"] is not None:
            assert abs(r["nll_sum"] - off[k]["nll_sum"]) < 1e-5 * off[k]["nll_sum"], k


def check_same_however_computed():
    on, flags = records(os.path.join(work, "on")), ("--evict-every", "5")
    same(on, records(run("chunk", *flags, "--chunk", "64", budget=BUDGETS)), "chunk 64")
    same(on, records(run("thread", *flags, "--threads", "1", budget=BUDGETS)), "one thread")
    alone = records(run("alone", *flags, policy="knorm", budget="9"))
    same({k: v for k, v in on.items() if k[2] == "knorm" and k[3] == 9}, alone, "a cell alone")


def check_resume():
    """More budgets extend a folder; another N is refused, with it off as well; the manifest repeats it."""
    out = run("resume", "--evict-every", "5", budget="9")
    before = records(out, drop=set())
    out = run("resume", "--evict-every", "5", budget=BUDGETS)
    after = records(out, drop=set())
    assert all(after[k] == r for k, r in before.items())
    same(records(os.path.join(work, "on")), records(out), "resumed with more budgets")
    assert manifest(out)["evict_every"] == "5" and manifest(os.path.join(work, "off"))["evict_every"] is None
    flags = ("eval", "--model", MODEL, "--chat", "plain", "--task", "ruler", "--budget", "4", "--data",
             f"{work}/rows.jsonl", "--dtype", "f32", "--sink", "2", "--recent", "3", "--window", "96", "--policy", "knorm")
    for name, more, said in (("resume", ("--evict-every", "6"), "evict_every = 5, but the command says 6"),
                             ("resume", (), "evict_every = 5, but the command says (none)"),
                             ("off", ("--evict-every", "5"), "evict_every = (none), but the command says 5")):
        done = kveval(*flags, "--out", os.path.join(work, name), *more, code=2)
        assert said in done.stderr, done.stderr
    again = os.path.join(work, "again")
    kveval("eval", "--config", out + "/manifest.json", "--out", again, "--quiet")
    same(records(out), records(again), "a replayed manifest")


def check_refusals():
    """What cannot is refused before anything runs, and told what can."""
    out = os.path.join(work, "refused")
    flags = ("eval", "--model", MODEL, "--chat", "plain", "--task", f"text:{work}/text.txt", "--window", "96",
             "--budget", "4", "--out", out, "--evict-every", "3", "--policy")
    os.makedirs(os.path.join(work, "rankings"), exist_ok=True)
    for policy in ("snapkv", "knorm,tova", "oracle", "leverage", "adakv:knorm", "criticalkv:knorm", "kvzip",
                   f"rankings:{work}/rankings"):
        done = kveval(*flags, policy, code=2)
        assert policy.split(",")[-1] in done.stderr and "these can: full, " + ", ".join(CAN) in done.stderr, done.stderr
        assert not os.path.exists(out), policy
    for value in ("-1", "x", "0.5"):
        kveval(*flags[:-2], value, "--policy", "knorm", code=2)


def check_report():
    on, off, never = (os.path.join(work, name) for name in ("on", "off", "never"))
    text = kveval("report", on).stdout
    assert "evict_every 5: " in text and "evict_every" not in kveval("report", off).stdout, text
    assert "MORE than allowed" not in text and "fewer than it was allowed" not in text, text
    for a, b, said in ((on, off, "evict_every is 5 in A and default in B"), (on, never, "evict_every is 5 in A and 100000 in B")):
        assert said in kveval("report", a, b, code=2).stderr
        assert said in kveval("report", a, b, "--mix").stdout
    other = os.path.join(work, "mixed")
    os.makedirs(other)
    with open(os.path.join(other, "records.jsonl"), "w") as f:
        for folder, policy in ((on, "knorm"), (off, "keydiff")):
            with open(os.path.join(folder, "records.jsonl")) as rows:
                f.writelines(line for line in rows if json.loads(line)["policy"] == policy)
    assert "differ in how they evict while decoding" in kveval("report", other, code=2).stderr
    assert "not compressed" not in [line for line in text.splitlines() if "| knorm" in line][0].split("|")[5], text


run_checks(globals())
