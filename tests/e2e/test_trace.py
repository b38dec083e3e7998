"""End to end: traces, rankings of traces, and evaluations of rankings that were made elsewhere."""
import array
import base64
import html.parser
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
        assert t["queries"][0] == [L, n, 4, D] and t["cos"][0] == t["sin"][0] == [n + 512, D // 2]
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


class Page(html.parser.HTMLParser):
    """What kveval tokens wrote: headings, the tokens of each column with their attributes, and the data behind it."""

    def __init__(self, path):
        super().__init__()
        self.names, self.columns, self.data, self.scripts, self.inside = [], [], {}, 0, None
        with open(path, encoding="utf-8", newline="") as f:
            self.source = f.read()
        self.feed(self.source)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.inside = (tag, attrs)
        self.scripts += tag == "script"
        assert not {"src", "href"} & attrs.keys() and tag not in ("link", "img", "iframe"), (tag, attrs)
        if attrs.get("class") == "text":
            self.columns.append([])
        elif tag == "i" and self.columns:
            self.columns[-1].append([attrs, ""])

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, text):
        tag, attrs = self.inside or (None, {})
        if tag == "h2":
            self.names.append(text)
        elif tag == "i" and self.columns:
            self.columns[-1][-1][1] += text
        elif tag == "script" and "id" in attrs:
            self.data[attrs["id"]] = array.array("I" if attrs["id"] == "ids" else "H", base64.b64decode(text))


def page_trace():
    """A text with all that HTML minds, bytes that are no characters alone, a line end and a control character."""
    out = work + "/page.safetensors"
    if not os.path.exists(out):
        with open(work + "/page.txt", "w", encoding="utf-8", newline="") as f:
            f.write("a<b && \"c\" 'd' </i><script>alert(1)</script>\ncaf\u00e9\t&amp;\x01 ok" + " abc de" * 9)
        kveval("trace", *INPUT, "--prompt-file", work + "/page.txt", "--max-new", "5", "--queries", "--out", out)
    return out


def tokens(out, *more, policy="knorm,snapkv,oracle", trace=None, code=0):
    return kveval("tokens", "--model", MODEL, "--trace", trace or page_trace(), "--policy", policy, "--sink", "2",
                  "--recent", "3", "--out", out, *more, code=code)


def check_tokens_page():
    tokens(work + "/pages/page.html")
    page, (meta, trace) = Page(work + "/pages/page.html"), load(page_trace())
    L, H, n, _ = trace["keys"][0]
    assert page.names == ["knorm", "snapkv", "oracle"] and [len(c) for c in page.columns] == [n] * 3, page.names
    assert list(page.data["ids"]) == list(trace["tokens"][1])
    for c, policy in enumerate(page.names):
        kveval("rank", "--trace", page_trace(), "--policy", policy, "--sink", "2", "--recent", "3", "--out",
               work + "/page-rank.safetensors")
        order, ranks = load(work + "/page-rank.safetensors")[1]["ranking"][1], page.data[f"ranks{c}"]
        assert len(ranks) == L * H * n == len(order)
        for h in range(L * H):
            for i, j in enumerate(order[h * n : (h + 1) * n]):
                assert ranks[h * n + j] == i, (policy, h, j, ranks[h * n + j], i)
        for j, (attrs, _) in enumerate(page.columns[c]):  # without JavaScript: layer 0, head 0
            rank = ranks[j] + 1
            assert attrs["title"] == f"position {j}, id {page.data['ids'][j]}, rank {rank}", attrs
            assert attrs["class"].endswith(" k") == (rank <= n // 4), (attrs, n)
        levels = [int(page.columns[c][j][0]["class"].split()[0][1:]) for j in order[:n]]
        assert levels == sorted(levels) and levels[0] == 0 and levels[-1] == 31, levels
    assert "the first 2 and the last 3" in page.source.lower()


def check_tokens_text():
    tokens(work + "/page.html", policy="random")
    page = Page(work + "/page.html")
    with open(work + "/page.txt", encoding="utf-8", newline="") as f:
        text = f.read()
    for raw, shown in (("\n", "\u21b5\n"), ("\t", "\u21e5\t"), ("\x01", "\u27e801\u27e9"),
                       ("\u00e9", "\u27e8C3\u27e9\u27e8A9\u27e9")):
        text = text.replace(raw, shown)
    shown = "".join(t for _, t in page.columns[0])
    assert shown + "e" == text, shown  # the last token is in no cache: it is what the answer starts from
    assert page.scripts == 3 and "&lt;" in page.source and "&amp;" in page.source and "alert(1)</script" not in page.source
    assert "http:" not in page.source and "https:" not in page.source
    done = tokens(work + "/page.html", policy="all")
    assert "'full' keeps every token" in done.stderr and "full" not in Page(work + "/page.html").names
    assert {"random", "tova", "oracle"} <= set(Page(work + "/page.html").names)


def edited(name, edit):
    """The trace with another header, and with the bytes of its tensors as `edit` leaves them."""
    with open(page_trace(), "rb") as f:
        data = f.read()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:start]), bytearray(data[start:])
    edit(header, body)
    packed = json.dumps(header).encode()
    packed += b" " * (-len(packed) % 8)
    path = f"{work}/{name}.safetensors"
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(packed)) + packed + body)
    return path


def check_bad_tokens_pages():
    out = work + "/none.html"
    assert "did you mean 'knorm'" in tokens(out, policy="knrm", code=2).stderr
    assert "'full' keeps every token" in tokens(out, policy="knorm,full", code=2).stderr
    assert "--queries" in tokens(out, policy="snapkv", trace=work + "/f32.safetensors", code=2).stderr
    assert "--out is missing" in kveval("tokens", "--trace", page_trace(), "--policy", "knorm", code=2).stderr
    other = tokens(out, trace=edited("other", lambda h, b: h["__metadata__"].update(model_sha256="0" * 64)), code=2).stderr
    assert "was made with another model" in other and "0" * 12 in other, other
    nobody = edited("nobody", lambda h, b: h["__metadata__"].pop("model_sha256"))
    assert "model_sha256" in tokens(out, trace=nobody, code=4).stderr

    def spoil(header, body):
        at = header["tokens"]["data_offsets"][0]
        body[at : at + 4] = struct.pack("<i", 9999)

    assert "'tokens', value 0 is 9999" in tokens(out, trace=edited("spoilt", spoil), code=4).stderr
    assert "none.safetensors" in tokens(out, trace=work + "/none.safetensors", code=4).stderr
    assert not os.path.exists(out)
    with open(work + "/taken", "w") as f:
        f.write("x")
    assert work + "/taken" in tokens(work + "/taken/page.html", code=4).stderr


run_checks(globals())
