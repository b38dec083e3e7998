#!/usr/bin/env bash
# Downloads a task's official files: fetch.sh NAME [DIR=data] makes DIR/NAME, which --data DIR then finds; without a name
# it lists what there is. Killed and started again it goes on where it was; a file gets its name when it is whole and
# checked. Where there is no network: put the file that the message names into DIR/NAME/.download and run it again.
# Exit codes: 0 done, 2 usage, 3 a tool is missing, 4 no network or no such file there, 5 not the file that is due.
set -euo pipefail

names=(boolq arc-challenge mmlu hellaswag gov-report oasst2 ruler-qa)

# Sets about, licence, files (what DIR/NAME holds in the end) and parts: "URL SHA256" of each download, "-" where the
# owner has published no checksum and none is known for certain.
describe() {
    local hf=https://huggingface.co/datasets swag=https://raw.githubusercontent.com/rowanz/hellaswag/master/data
    case $1 in
    boolq)
        about="BoolQ as SuperGLUE publishes it, 4 MB"
        licence="CC BY-SA 3.0"
        files=(train.jsonl val.jsonl)
        parts=("https://dl.fbaipublicfiles.com/glue/superglue/data/v2/BoolQ.zip 853fbe7922f70c59629f06a39e8d9ca440c3d740e760fd3b87a5ddf3dcba2436")
        ;;
    arc-challenge)
        about="AI2 Reasoning Challenge, 680 MB (most of it a text corpus, which is not kept)"
        licence="CC BY-SA 4.0"
        files=(ARC-Challenge-Train.jsonl ARC-Challenge-Dev.jsonl ARC-Challenge-Test.jsonl)
        parts=("https://ai2-public-datasets.s3.amazonaws.com/arc/ARC-V1-Feb2018.zip -")
        ;;
    mmlu)
        about="MMLU, CSV of 57 subjects, 166 MB (its auxiliary training set is not kept)"
        licence="MIT"
        files=(dev test val)
        parts=("$hf/cais/mmlu/resolve/main/data.tar bec563ba4bac1d6aaf04141cd7d1605d7a5ca833e38f994051e818489592989b")
        ;;
    hellaswag)
        about="HellaSwag, 60 MB"
        licence="MIT"
        files=(hellaswag_val.jsonl hellaswag_train.jsonl)
        parts=("$swag/hellaswag_val.jsonl 0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588"
            "$swag/hellaswag_train.jsonl -")
        ;;
    gov-report)
        about="GovReport as LongBench publishes it, 114 MB (its other tasks are not kept)"
        licence="CC BY 4.0 (GovReport), MIT (LongBench); the reports are US government works"
        files=(gov_report.jsonl)
        parts=("$hf/THUDM/LongBench/resolve/main/data.zip -")
        ;;
    oasst2)
        about="OpenAssistant Conversations 2, message trees, 54 MB"
        licence="Apache-2.0"
        files=(oasst2.trees.jsonl)
        parts=("$hf/OpenAssistant/oasst2/resolve/179dd21fc55192153d94adb0e0ce8f69e222bf75/2023-11-05_oasst2_ready.trees.jsonl.gz 7a886a16ccfc1173c4f00a6897523e3c95b2785a86ee44a18a98f4f2807ee29b")
        ;;
    ruler-qa)
        about="SQuAD 2.0 and HotpotQA, of which RULER makes qa_1 and qa_2, 50 MB"
        licence="CC BY-SA 4.0 (both)"
        files=(dev-v2.0.json hotpot_dev_distractor_v1.json)
        parts=("https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json 80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8"
            "http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json -")
        ;;
    *) return 1 ;;
    esac
}

fail() {
    local code=$1
    shift
    printf 'datasets/fetch.sh: %s\n' "$*" >&2
    exit "$code"
}

need() {
    command -v "$1" >/dev/null || fail 3 "$1 is not installed; Debian: apt-get install $2"
}

list() {
    echo "usage: datasets/fetch.sh NAME [DIR=data]"
    local name
    for name in "${names[@]}"; do
        describe "$name"
        printf '  %-14s %s; %s\n' "$name" "$about" "$licence"
    done
}

# What curl's exit code $1 means for the download of $2 to $3.
explain() {
    local host=${2#*://}
    host=${host%%/*}
    case $1 in
    5 | 6 | 7 | 28 | 35) fail 4 "no network, or $host cannot be reached (curl: $1). Fetch $2 elsewhere, put it at $3 and run this again" ;;
    22) fail 4 "$host refuses $2, or no longer has it. Find the file elsewhere, put it at $3 and run this again" ;;
    18 | 56) fail 4 "the connection to $host broke off; run this again, it goes on where it stopped" ;;
    *) fail 4 "curl ends with $1 on $2" ;;
    esac
}

# Downloads $1 as $2. A part that the server will not continue (it may be whole already) is fetched anew once.
download() {
    local url=$1 file=$2 rc=0
    [ -f "$file" ] && return
    need curl curl
    echo "downloading $url"
    curl --fail --location --silent --show-error --connect-timeout 20 --retry 2 --continue-at - --output "$file.part" "$url" || rc=$?
    if { [ "$rc" = 22 ] || [ "$rc" = 33 ]; } && [ -s "$file.part" ]; then
        rm -f "$file.part"
        rc=0
        curl --fail --location --silent --show-error --connect-timeout 20 --output "$file.part" "$url" || rc=$?
    fi
    [ "$rc" = 0 ] || explain "$rc" "$url" "$file"
    [ -s "$file.part" ] || fail 5 "$url: an empty file came"
    mv "$file.part" "$file"
}

# A file that is not the one that is due is put aside, so that the next run fetches it anew.
check_sum() {
    local file=$1 want=$2 sum
    sum=$(sha256sum "$file")
    sum=${sum%% *}
    if [ "$want" = - ]; then
        echo "sha256 $sum  ${file##*/} (not pinned: note it down, and compare it with other copies)"
    elif [ "$sum" != "$want" ]; then
        mv "$file" "$file.bad"
        fail 5 "${file##*/} has sha256 $sum instead of $want: the file was damaged or has changed; it is kept as $file.bad"
    else
        echo "sha256 $sum  ${file##*/} (as pinned)"
    fi
}

# Unpacks what is needed of archive $1 into $2.
unpack() {
    local file=$1 into=$2
    case ${file##*/} in
    BoolQ.zip) unzip -q -o -j "$file" 'BoolQ/train.jsonl' 'BoolQ/val.jsonl' -d "$into" ;;
    ARC-V1-Feb2018.zip) unzip -q -o -j "$file" '*/ARC-Challenge-*.jsonl' -d "$into" ;;
    data.zip) unzip -q -o -j "$file" '*/gov_report.jsonl' -d "$into" ;;
    data.tar) tar -x -f "$file" -C "$into" --no-same-owner --strip-components=1 data/dev data/test data/val ;;
    *.gz) gunzip -c "$file" >"$into/oasst2.trees.jsonl" ;;
    *) cp "$file" "$into" ;;
    esac
}

[ $# -ge 1 ] || { list; exit 2; }
[ "$1" != --help ] || { list; exit 0; }
describe "$1" || { list >&2; fail 2 "'$1' is none of them"; }
dest=${2:-data}/$1
stage=$dest/.download
printf '%s: %s\nlicence: %s\n' "$1" "$about" "$licence"
missing=0
for f in "${files[@]}"; do
    [ -e "$dest/$f" ] || missing=1
done
[ "$missing" = 1 ] || { echo "$dest: already there"; exit 0; }

need sha256sum coreutils
case "${parts[*]}" in
*.zip*) need unzip unzip ;;
*.tar*) need tar tar ;;
*.gz*) need gunzip gzip ;;
esac
mkdir -p "$stage/out" || fail 2 "$stage: cannot be made"
for part in "${parts[@]}"; do
    url=${part% *}
    file=$stage/${url##*/}
    download "$url" "$file"
    check_sum "$file" "${part##* }"
    unpack "$file" "$stage/out" || { mv "$file" "$file.bad"; fail 5 "${file##*/} cannot be unpacked: the file is damaged or has changed; it is kept as $file.bad"; }
done
for f in "${files[@]}"; do
    [ -e "$stage/out/$f" ] || fail 5 "$f is not in what was downloaded; the owner has changed the archive"
    rm -rf "${dest:?}/$f"
    mv "$stage/out/$f" "$dest/$f"
done
rm -rf "$stage"
echo "$dest: ${files[*]}"
