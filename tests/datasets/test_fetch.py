"""datasets/fetch.sh with a curl of our own on PATH: offline, refused, broken off, changed, good; and a sha256sum that says
what it is told, since no test can have the real files. Usage: test_fetch.py SOURCE_DIR"""
import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

SCRIPT = os.path.join(sys.argv[1], "datasets/fetch.sh")
work = tempfile.mkdtemp(prefix="kveval-fetch-")
PINNED = {"boolq": "853fbe79", "mmlu": "bec563ba", "hellaswag": "0aa3b888", "oasst2": "7a886a16", "ruler-qa": "80a5225e"}

# Serves files of $SERVED by the last part of the URL. MODE: a curl exit code, "half", or "good".
CURL = r"""#!/usr/bin/env bash
set -euo pipefail
echo "$*" >>"$SERVED/../calls"
out= from=0 args=("$@")
for ((i = 0; i < $#; i++)); do
    case ${args[i]} in
    --output) out=${args[i + 1]} ;;
    --continue-at) [ ! -f "$out" ] || from=1 ;;
    esac
done
for ((i = 0; i < $#; i++)); do
    [ "${args[i]}" != --output ] || out=${args[i + 1]}
done
url=${args[$# - 1]}
file=$SERVED/${url##*/}
case $MODE in
half)
    head -c $(($(stat -c %s "$file") / 2)) "$file" >"$out"
    exit 18 ;;
good)
    have=$(stat -c %s "$out" 2>/dev/null || echo 0)
    case " $* " in *" --continue-at "*) ;; *) have=0; : >"$out" ;; esac
    [ "$have" = 0 ] || [ "$have" -lt "$(stat -c %s "$file")" ] || exit 22
    tail -c +$((have + 1)) "$file" >>"$out" ;;
*) exit "$MODE" ;;
esac
"""
# Says the pinned sum of the file named last, if $SUMS has one.
SHA = r"""#!/usr/bin/env bash
set -euo pipefail
name=${1##*/}
line=$(grep -s "^$name " "$SUMS" || true)
[ -z "$line" ] || { echo "${line#* }  $1"; exit; }
exec "$REAL_SHA" "$1"
"""


def archive_zip(members):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as z:
        for name, text in members.items():
            z.writestr(name, text)
    return data.getvalue()


def archive_tar(members):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as t:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            t.addfile(info, io.BytesIO(text.encode()))
    return data.getvalue()


SERVED = {
    "BoolQ.zip": archive_zip({"BoolQ/train.jsonl": "t" * 90, "BoolQ/val.jsonl": "v", "BoolQ/test.jsonl": "x"}),
    "ARC-V1-Feb2018.zip": archive_zip({f"A/ARC-Challenge/ARC-Challenge-{s}.jsonl": s for s in ("Train", "Dev", "Test")} |
                                      {"A/ARC_Corpus.txt": "c" * 500}),
    "data.tar": archive_tar({f"data/{s}/art_{s}.csv": s for s in ("dev", "test", "val")} | {"data/auxiliary_train/x.csv": "x"}),
    "hellaswag_val.jsonl": b"val\n", "hellaswag_train.jsonl": b"train\n",
    "data.zip": archive_zip({"data/gov_report.jsonl": "g" * 200, "data/qasper.jsonl": "q"}),
    "2023-11-05_oasst2_ready.trees.jsonl.gz": gzip.compress(b"tree\n"),
    "dev-v2.0.json": b"{squad}", "hotpot_dev_distractor_v1.json": b"[hotpot]",
}
FOUND = {
    "boolq": {"train.jsonl": "t" * 90, "val.jsonl": "v"},
    "arc-challenge": {f"ARC-Challenge-{s}.jsonl": s for s in ("Train", "Dev", "Test")},
    "mmlu": {f"{s}/art_{s}.csv": s for s in ("dev", "test", "val")},
    "hellaswag": {"hellaswag_val.jsonl": "val\n", "hellaswag_train.jsonl": "train\n"},
    "gov-report": {"gov_report.jsonl": "g" * 200},
    "oasst2": {"oasst2.trees.jsonl": "tree\n"},
    "ruler-qa": {"dev-v2.0.json": "{squad}", "hotpot_dev_distractor_v1.json": "[hotpot]"},
}


def prepare():
    for folder in ("bin", "served", "bare"):
        os.makedirs(os.path.join(work, folder))
    for name, text in (("curl", CURL), ("sha256sum", SHA)):
        with open(os.path.join(work, "bin", name), "w") as f:
            f.write(text)
        os.chmod(os.path.join(work, "bin", name), 0o755)
    for name, data in SERVED.items():
        with open(os.path.join(work, "served", name), "wb") as f:
            f.write(data)
    with open(SCRIPT) as f:
        script = f.read()
    with open(os.path.join(work, "sums"), "w") as f:  # every download that the script pins, by name
        for word in script.split():
            if word.endswith('"') or word.endswith('")'):
                sum_ = word.rstrip('")')
                url = script[: script.index(sum_)].split('"')[-1].strip()
                if len(sum_) == 64:
                    f.write(f"{url.rsplit('/', 1)[-1]} {sum_}\n")


def fetch(*args, mode="good", code=0, sums=True, path=None):
    env = {**os.environ, "PATH": path or os.path.join(work, "bin") + ":" + os.environ["PATH"], "MODE": str(mode),
           "SERVED": os.path.join(work, "served"), "SUMS": os.path.join(work, "sums") if sums else "/nonexistent",
           "REAL_SHA": shutil.which("sha256sum")}
    done = subprocess.run([shutil.which("bash"), SCRIPT, *args], capture_output=True, text=True, env=env, cwd=work)
    assert done.returncode == code, f"{args} {mode}: exit {done.returncode} instead of {code}\n{done.stdout}\n{done.stderr}"
    return done


def calls():
    path = os.path.join(work, "calls")
    lines = []
    if os.path.exists(path):
        with open(path) as f:
            lines = f.readlines()
        os.remove(path)
    return lines


def tree(folder):
    found = {}
    for base, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(base, name), errors="replace") as f:
                found[os.path.relpath(os.path.join(base, name), folder)] = f.read()
    return found


def check_good():
    for name, files in FOUND.items():
        done = fetch(name, "good")
        assert tree(f"{work}/good/{name}") == files, (name, tree(f"{work}/good/{name}"))
        assert "licence: " in done.stdout and ("(as pinned)" in done.stdout) == (name in PINNED), done.stdout
        assert PINNED.get(name, "sha256 ") in done.stdout, done.stdout
        if name not in PINNED:
            assert "not pinned" in done.stdout, done.stdout
        assert calls()
        assert "already there" in fetch(name, "good", mode=6).stdout and not calls()  # nothing is fetched twice


def check_offline():
    done = fetch("boolq", "offline", mode=6, code=4)
    assert "no network" in done.stderr and "dl.fbaipublicfiles.com" in done.stderr, done.stderr
    place = "offline/boolq/.download/BoolQ.zip"
    assert place in done.stderr and list(tree(f"{work}/offline")) == [], done.stderr
    shutil.copy(f"{work}/served/BoolQ.zip", f"{work}/{place}")  # as the message says
    fetch("boolq", "offline", mode=6)
    assert tree(f"{work}/offline/boolq") == FOUND["boolq"]
    assert "refuses" in fetch("gov-report", "gone", mode=22, code=4).stderr
    assert "curl ends with 99" in fetch("gov-report", "odd", mode=99, code=4).stderr


def check_broken_off():
    """Half a file keeps no name of its own; the next run goes on with it."""
    done = fetch("gov-report", "half", mode="half", code=4)
    assert "goes on where it stopped" in done.stderr, done.stderr
    assert list(tree(f"{work}/half/gov-report")) == [".download/data.zip.part"], tree(f"{work}/half")
    fetch("gov-report", "half")
    assert tree(f"{work}/half/gov-report") == FOUND["gov-report"]
    os.makedirs(f"{work}/whole/gov-report/.download")  # killed between the last byte and the renaming
    shutil.copy(f"{work}/served/data.zip", f"{work}/whole/gov-report/.download/data.zip.part")
    calls()
    fetch("gov-report", "whole")
    assert tree(f"{work}/whole/gov-report") == FOUND["gov-report"] and len(calls()) == 2


def check_changed():
    """Another file than the pinned one, and an archive that is none: refused, put aside, fetched anew."""
    done = fetch("boolq", "changed", sums=False, code=5)
    assert "instead of 853fbe79" in done.stderr, done.stderr
    assert list(tree(f"{work}/changed/boolq")) == [".download/BoolQ.zip.bad"]
    fetch("boolq", "changed")
    assert tree(f"{work}/changed/boolq") == FOUND["boolq"]
    os.makedirs(f"{work}/page/gov-report/.download")
    with open(f"{work}/page/gov-report/.download/data.zip", "w") as f:
        f.write("<html>sign in</html>")
    assert "cannot be unpacked" in fetch("gov-report", "page", code=5).stderr
    assert list(tree(f"{work}/page/gov-report")) == [".download/data.zip.bad"]


def check_usage():
    for name in FOUND:
        assert name in fetch("--help").stdout
    assert "'boolk' is none of them" in fetch("boolk", code=2).stderr
    fetch(code=2)
    for tool in ("bash", "mkdir", "sha256sum", "unzip"):
        os.symlink(shutil.which(tool), f"{work}/bare/{tool}")
    assert "curl is not installed" in fetch("gov-report", "bare-out", path=f"{work}/bare", code=3).stderr
    os.remove(f"{work}/bare/unzip")
    assert "unzip is not installed" in fetch("gov-report", "bare-out", path=f"{work}/bare", code=3).stderr


def main():
    missing = [tool for tool in ("bash", "unzip", "tar", "gunzip", "sha256sum") if not shutil.which(tool)]
    if missing:
        print(f"skipped: {', '.join(missing)} not installed")
        return 77
    try:
        prepare()
        for check in (check_good, check_offline, check_broken_off, check_changed, check_usage):
            check()
            print("ok", check.__name__)
    finally:
        shutil.rmtree(work)
    return 0


sys.exit(main())
