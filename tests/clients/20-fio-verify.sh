#!/usr/bin/env bash
# fio writes blocks that carry their own checksum, in sizes from 512 B to 1 MiB at any multiple of 512 and
# then at odd offsets; they are verified at once, after a restart, and after kill -9.
. "$(dirname "$0")/_lib.sh"

run_fio() {
    (cd "$work" && fio --ioengine=nbd --uri="$uri" --name=verify --rw=randwrite --iodepth=16 \
        --size=256M --verify=crc32c --randseed=7 --minimal --output="$work/fio.log" "$@") \
        || { cat "$work/fio.log"; return 1; }
}
sizes=(--bsrange=512-1M --blockalign=512)
odd=(--bsrange=512-128k --blockalign=512 --offset=268435969)

start demo --size 1G --batch 1M
check "written and verified" run_fio "${sizes[@]}"
check "verified once more" run_fio "${sizes[@]}" --verify_only
check "written and verified at odd offsets" run_fio "${odd[@]}"
check "flushed to the store" "$weir" volume flush demo --remote --wait
stop
start demo
check "verified after a restart" run_fio "${sizes[@]}" --verify_only
check "verified after a restart, odd offsets" run_fio "${odd[@]}" --verify_only
check "written again" run_fio "${sizes[@]}" --do_verify=0
crash
start demo
check "verified after kill -9" run_fio "${sizes[@]}" --verify_only

# The check must be able to fail.
qemu-io -f raw "$uri" -c "write -P 0x5a 100000 4096" >/dev/null
refuse "a changed byte is found" "verify|84|Invalid" run_fio "${sizes[@]}" --verify_only
stop
