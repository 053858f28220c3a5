#!/usr/bin/env bash
# Stages of a volume: a limit that is changed while it is served, and a trace that `weir trace sim` reads.
. "$(dirname "$0")/_lib.sh"

# layers: of the volume demo, as `kind` or `kind:field=value`, one a line.
layers() {
    "$weir" status --output json | python3 -c '
import json, sys
for process in json.load(sys.stdin):
    for volume in process["volumes"]:
        if volume["name"] == "demo":
            for layer in volume["layers"]:
                limit = layer.get("limit") or {}
                counts = {o["kind"]: o["count"] for o in layer["operations"]}
                print(layer["kind"], *[f"{k}={v}" for k, v in sorted(limit.items())],
                      *[f"{k}={layer[k]}" for k in ("recorded", "missing") if layer.get(k) is not None],
                      *[f"{k}s={v}" for k, v in counts.items()])'
}
has_layers() { [ "$(layers | cut -d ' ' -f 1 | paste -sd ' ')" = "$1" ]; }
layer_says() { layers | grep -E -- "$1"; }

refuse "a limit of zero is refused" "invalid value|0 is not in" "$weir" up demo --size 64M --iops 0
start demo --size 64M --trace "$work/trace.csv"
check "a trace is a layer over the log volume" has_layers "trace log"
for step in 0 1 2 3 4 5 6 7; do
    qemu-io -f raw "$uri" -c "write -P $step ${step}M 64k" -c "read -P $step ${step}M 64k" -c flush >/dev/null || exit 1
done
check "operations are counted layer by layer" layer_says '^log .*writes=8'
recorded() { layer_says '^trace recorded=([2-9][0-9]|[0-9]{3,}) missing=0'; }
eventually "they are recorded" recorded

refuse "a served volume is not limited to nothing" '"0" is neither a number from 1 on' \
    "$weir" volume limit demo --iops 0
refuse "nor to a word" '"many" is neither a number' "$weir" volume limit demo --iops many
refuse "a burst alone limits nothing" "a burst is one of a limit" "$weir" volume limit demo --burst 2
refuse "a burst has bounds" "burst|seconds" "$weir" volume limit demo --iops 10 --burst 0.001
refuse "a limit says what it limits" "required" "$weir" volume limit demo
check "a limit is set while the volume is served" "$weir" volume limit demo --iops 5000 --bandwidth 100M --burst 0.5
check "it is a layer on top" has_layers "limit trace log"
check "it is what was set" layer_says '^limit burst_ms=500 bytes_per_second=104857600 iops=5000'
limits() { "$weir" volume show demo | grep '^limits'; }
check "another limit" "$weir" volume limit demo --bandwidth 50M
is() { limits | grep -qF "$1" || { limits; return 1; }; }
check "leaves the others as they are" is "operations 5000/s, bytes 50.0 MiB/s, burst 500 ms"
check "one alone is taken away" "$weir" volume limit demo --bandwidth none
check "and the others stay" is "operations 5000/s, bytes none, burst 500 ms"
check "clients go on" qemu-io -f raw "$uri" -c "write -P 9 0 1M" -c "read -P 9 0 1M"
check "they pass it" layer_says '^limit .*reads=[1-9]'
check "it is taken away again" "$weir" volume limit demo --none
check "and is no layer any more" has_layers "trace log"
stop
check "the trace is read by the simulator" "$weir" trace sim "$work/trace.csv" --batch 1M
writes() {
    "$weir" trace sim "$work/trace.csv" --batch 1M --output json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["writes"])'
}
at_least_nine() { [ "$(writes)" -ge 9 ]; }
check "every write is in it" at_least_nine
refuse "a volume that is not served has no limit" "not served" "$weir" volume limit demo --iops 5

cat >"$work/weir.toml" <<END
[[volumes]]
name = "demo"
iops = 100
burst = 1.0
END
check "limits stand in the file" "$weir" serve --check --config "$work/weir.toml"
sed -i 's/iops = 100/iops = 0/' "$work/weir.toml"
refuse "a limit of zero in the file is refused" "0 operations per second" \
    "$weir" serve --check --config "$work/weir.toml"
