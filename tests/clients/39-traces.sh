#!/usr/bin/env bash
# Block traces: generated ones with known answers in every format of text, and the public ones in WEIR_TRACES. Those are
# no part of the repository: a run without WEIR_TRACES says so and judges the generated ones; with it all must be there.
traces=${WEIR_TRACES:-}
. "$(dirname "$0")/_lib.sh"

# value NAME ARGUMENTS...: a number of the first batch size in what `trace sim` says as JSON.
value() { "$weir" trace sim "${@:2}" --output json | sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" | head -n 1; }
is() { [ "$1" = "$2" ] || { echo "$1 is not $2"; return 1; }; }
above() { [ "$1" -gt "$2" ] || { echo "$1 is not above $2"; return 1; }; }

check "Zipf: a third and more of the bytes is merged" above "$(value merged_permille --generate zipf --batch 8M)" 333
check "larger batches merge more" above "$(value merged_permille --generate zipf --batch 32M)" \
    "$(value merged_permille --generate zipf --batch 8M)"
check "holes: two extents per record" above "$(value extents_with_merging --generate holes)" 39999
check "plugged they are less than half" above 20000 "$(value extents --generate holes)"
printf '1,W,0,0,4096\n2,W,0,0,4096\n3,R,0,0,512\n4,W,1,8192,100\n' >"$work/trace.csv"
check "a trace of one's own" is "$(value written_bytes "$work/trace.csv")" 8292
check "and what it stores" is "$(value stored_bytes "$work/trace.csv")" 4196
check "through a pipe" is "$("$weir" trace sim - --output json <"$work/trace.csv" | grep -c '"reads": 1,')" 1
echo '5,W,0,x,1' >>"$work/trace.csv"
refuse "a line that is no request" "trace.csv, line 5, is no request in the format csv" \
    "$weir" trace sim "$work/trace.csv"
printf '1,W,4,135536145408,8192\n' >"$work/other.csv"
refuse "an offset taken for a length" "other.csv, line 1, would be a request of 135536145408 bytes" \
    "$weir" trace sim "$work/other.csv" --format alibaba
for ((i = 0; i < 3000; i++)); do echo "$i,W,0,$((i * (1 << 30))),$((1 << 30))"; done >"$work/wide.csv"
refuse "a cache that takes too much memory" "more than the 64.0 MiB it may" \
    "$weir" trace cache "$work/wide.csv" --size 100% --memory-limit 64M
refuse "a map that takes too much memory" "more than the 64.0 MiB it may" \
    "$weir" trace sim "$work/wide.csv" --memory-limit 64M
refuse "a file that is no trace" "in no format that can be guessed" "$weir" trace sim "$0"
refuse "a trace that is not there" "No such file" "$weir" trace sim "$work/nothing"
refuse "a batch that is too large" "40M is the largest" "$weir" trace sim --generate zipf --batch 1G

# A cache of one band of two that are read in turn, and of both.
printf '1,R,0,0,262144\n2,R,0,262144,4096\n3,W,0,0,4096\n4,R,0,262144,8192\n' >"$work/cache.csv"
cached() { # NAME ARGUMENTS...: a number of what `trace cache` says of the first cache
    "$weir" trace cache "$work/cache.csv" --policy lru "${@:2}" --output json |
        sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" | head -n 1
}
check "a cache of one band has nothing" is "$(cached hits --size 256K)" 0
check "all of them made room" is "$(cached evictions --size 256K)" 3
check "a cache of both has what came before" is "$(cached hits --size 100%)" 2
check "of the blocks that were asked for" is "$(cached blocks --size 100%)" 68
check "neighbours lie beside each other" is "$(cached sequential_permille --size 512K --policy lru)" 0
policies=' (six-factor|six-factor-alone|lru|arc|s3-fifo|block-lru) '
check "all policies stand in one table" is \
    "$("$weir" trace cache "$work/cache.csv" --size 50% | grep -cE "$policies")" 6
check "weights are found" is "$("$weir" trace cache "$work/cache.csv" --size 256K --tune 2>&1 | grep -c '^best: ')" 1
refuse "a share of nothing" "more than 0%" "$weir" trace cache "$work/cache.csv" --size 0%
refuse "five weights" "six numbers" "$weir" trace cache "$work/cache.csv" --weights 1,1,1,1,1
refuse "an unknown policy" "there are six-factor" "$weir" trace cache "$work/cache.csv" --policy clock
printf '1,F,0,0,0\n' >"$work/empty.csv"
refuse "a trace of flushes" "nothing is read or written" "$weir" trace cache "$work/empty.csv"
printf '1,R,0,9000000000000000000,4096\n' >"$work/far.csv"
refuse "a disk that is too large" "128 PiB" "$weir" trace cache "$work/far.csv"

# The same requests in each format, with the answers that traces.py works out by itself.
/usr/bin/python3 "$repository/tests/clients/traces.py" "$work/traces" >"$work/answers" || not_ok "traces are generated"
answers() { # FILE FORMAT READS WRITES WRITTEN STORED
    "$weir" trace sim "$work/traces/$1" --format "$2" --batch 32M --output json >"$work/answer" || return
    local field
    for field in "reads:$3" "writes:$4" "written_bytes:$5" "stored_bytes:$6"; do
        grep -q "\"${field%:*}\": ${field#*:}," "$work/answer" || { echo "$field"; cat "$work/answer"; return 1; }
    done
}
while read -r file format reads writes written stored; do
    check "$file as $format" answers "$file" "$format" "$reads" "$writes" "$written" "$stored"
done <"$work/answers"
check "there were all formats" is "$(wc -l <"$work/answers")" 9

if [ -n "$traces" ]; then
    for entry in msps-dtrs-127k:13920 disksim-ssd-postmark:10477 disksim-ssd-iozone:100000 msps-tpcc-7k:2618; do
        check "${entry%:*}" is "$(value writes "$traces/${entry%:*}.csv.zst")" "${entry#*:}"
    done
else
    echo "# WEIR_TRACES is not set: the public traces were not replayed"
fi
