#!/usr/bin/env bash
# Volumes in S3: versitygw and MinIO on loopback; what they answer, what goes wrong between them and us, and what comes
# of it at the client. A proxy between them loses answers, breaks bodies off and lies (tests/s3/fault_proxy.py).
. "$(dirname "$0")/_lib.sh"
. "$repository/tests/s3/servers.sh"

servers_or_skip
store=s3://weir/tests

run_fio() {
    (cd "$work" && timeout 300 fio --ioengine=nbd --uri="$uri" --name=verify --rw=randwrite --iodepth=8 \
        --size=48M --bsrange=512-256k --blockalign=512 --verify=crc32c --randseed=7 --minimal \
        --output="$work/fio.log" "$@") || { cat "$work/fio.log"; return 1; }
}
# One that goes on in the background, for 16 s if nothing holds it up.
fio_slowly() {
    run_fio --size=192M --rate=12M >"$work/fio.out" 2>&1 &
    fio_pid=$!
}
# fio_ends NAME: it must have seen no error.
fio_ends() {
    if wait "$fio_pid"; then ok "$1"; else not_ok "$1" "$(cut -c 1-300 "$work/fio.out"; tail -n 5 "$work/weir.log")"; fi
}
logged() { grep -qE "$1" "$work/weir.log"; }
small=(--journal 64M --batch 1M --batch-age 1 --store "$store")
objects() { "$s3_python" "$s3_tools/client.py" list weir "$@"; }

# ---- each server: probe, serve, restart, copy ----
each_server() {
    local server=$1
    "start_$server" "$server" || { not_ok "$server starts" "$(cat "$work/$server.log")"; return; }
    check "$server: store probe" "$weir" store probe "$store"
    says_usable() { "$weir" store probe "$store" --output json | grep -q '"verdict": "usable"'; }
    check "$server: store probe in JSON" says_usable
    one_record() { [ "$(objects tests/weir-probe/ | grep -c .)" = 1 ]; }
    check "$server: a probe leaves its record only" one_record
    start "$server" --size 256M "${small[@]}"
    check "$server: fio writes and verifies" run_fio
    check "$server: flushed to the store" "$weir" volume flush "$server" --remote --wait --store "$store"
    stop
    rm -rf "$WEIR_DATA_DIR/volumes"
    start "$server" "${small[@]}" --take-over
    check "$server: verified from the store alone" run_fio --verify_only
    crash
    start "$server" "${small[@]}"
    check "$server: verified after kill -9" run_fio --verify_only
    head -c 64M /dev/urandom >"$work/random"
    check "$server: nbdcopy in" nbdcopy --flush "$work/random" "$uri"
    stop
    start "$server" "${small[@]}"
    nbdcopy "$uri" "$work/out" 2>"$work/err"
    check "$server: nbdcopy out is the same" cmp -n $((64 << 20)) "$work/random" "$work/out"
    rm -f "$work/out" "$work/random"
    stop
    check "$server: volume list" sh -c "'$weir' volume list --store $store | grep -q '$server'"
}
each_server minio
minio_pid=$s3_pid
kill -KILL "$minio_pid"
wait "$minio_pid" 2>/dev/null
# Another server at the same address: the volumes that were there are gone, and nothing is begun anew unasked.
start_versitygw versitygw-blank
refuse "a store without the volumes that were in it is not begun anew" "never had any" \
    timeout 60 "$weir" up versitygw --size 256M "${small[@]}" -- true
kill -KILL "$s3_pid"
wait "$s3_pid" 2>/dev/null
rm "$WEIR_DATA_DIR/stores"
each_server versitygw

# ---- many volumes from one process ----
check "serve --check with a bucket" "$weir" serve --check --store "$store"
"$weir" serve --read-only --store "$store" >"$work/weir.out" 2>"$work/weir.log" </dev/null &
weir_pid=$!
uri="nbd+unix:///versitygw?socket=$WEIR_DATA_DIR/nbd.sock"
wait_for_export "$uri"
check "serve --read-only with a bucket: a volume is offered for reading" nbdinfo --is read-only "$uri"
refuse "and nobody opens it for writing" "Permission denied" qemu-io -f raw "$uri" -c "write -P 1 0 4k"
check "status names the bucket" sh -c "'$weir' status | grep -q 'store $store'"
stop

# ---- settings and credentials: said at once, with the way out ----
up() { timeout 60 "$weir" up demo --size 64M --store "$@" -- true; }
refuse "a wrong access key" "AWS_ACCESS_KEY_ID" env AWS_ACCESS_KEY_ID=nobody "$weir" volume list --store "$store"
refuse "a wrong secret" "AWS_SECRET_ACCESS_KEY" env AWS_SECRET_ACCESS_KEY=wrong "$weir" volume list --store "$store"
no_secret_shown() {
    ! grep -q only-for-tests <<<"$(AWS_ACCESS_KEY_ID=nobody "$weir" volume list --store "$store" 2>&1)"
}
check "no secret is shown" no_secret_shown
refuse "no credentials" "AWS_ACCESS_KEY_ID" env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY \
    "$weir" volume list --store "$store"
printf '[tests]\naws_access_key_id = %s\naws_secret_access_key = %s\n' \
    "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY" >"$work/credentials"
check "credentials of a profile" env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY AWS_PROFILE=tests \
    AWS_SHARED_CREDENTIALS_FILE="$work/credentials" "$weir" volume list --store "$store"
role_port=$(free_port)
"$s3_python" "$s3_tools/metadata_service.py" "$role_port" "$work/role-count" </dev/null &
processes+=($!)
answers "$role_port" $! || not_ok "the metadata service starts"
as_role() {
    env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY -u AWS_EC2_METADATA_DISABLED \
        AWS_EC2_METADATA_SERVICE_ENDPOINT="http://127.0.0.1:$role_port" "$@"
}
check "credentials of the machine's role" as_role "$weir" store probe "$store"
# Keys are good for at least a tenth of a second, however soon they expire: a probe may be over by then.
renewed() {
    local before
    before=$(cat "$work/role-count")
    as_role "$weir" up by-role --size 1M --store "$store" -- sleep 1 || return
    [ "$(cat "$work/role-count")" -gt $((before + 1)) ]
}
check "they are asked for again before they expire" renewed
refuse "a missing bucket" "no such bucket" up s3://no-such-bucket/x
refuse "an endpoint without encryption" "AWS_ALLOW_HTTP" \
    env AWS_ENDPOINT_URL=http://192.0.2.1:9000 "$weir" volume list --store "$store"
refuse "credentials in the URL" "do not belong in a URL" "$weir" volume list --store s3://k:s@weir/x

# The same service behind a private authority.
(cd "$work" && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=tests-ca \
    -keyout ca.key -out ca.pem -addext basicConstraints=critical,CA:TRUE \
    && openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -keyout tls.key -out tls.csr \
    && openssl x509 -req -in tls.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out tls.pem \
        -extfile <(printf 'subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n')) >"$work/openssl.log" 2>&1
tls_port=$(free_port)
ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY "$s3_bin/versitygw" \
    -p "127.0.0.1:$tls_port" --cert "$work/tls.pem" --key "$work/tls.key" -q posix "$s3_data" \
    >"$work/tls.log" 2>&1 </dev/null &
processes+=($!)
answers "$tls_port" $! || not_ok "versitygw with TLS starts" "$(cat "$work/openssl.log" "$work/tls.log")"
over_tls() { env AWS_ENDPOINT_URL="https://127.0.0.1:$tls_port" "$@"; }
check "a private authority" over_tls env AWS_CA_BUNDLE="$work/ca.pem" "$weir" store probe "$store"
refuse "an authority that is not trusted" "ertificate|UnknownIssuer" \
    over_tls timeout 60 "$weir" volume list --store "$store"

start_proxy || not_ok "the proxy starts"
faults answer=403:RequestTimeTooSkewed
refuse "a clock hours off" "clock" up "$store"
faults answer=400:ExpiredToken
refuse "an expired token" "expired" up "$store"

# ---- stores that must not be used ----
faults two_winners=1
refuse "a store where races are won twice fails its probe" "racing writers were told" \
    "$weir" store probe s3://weir/bad
refuse "and is refused" "does not keep two writers.*--single-writer" up s3://weir/bad
check "unless there is a single writer" up s3://weir/bad --single-writer
faults overwrites=1
refuse "so is one that ignores conditions" "If-None-Match is ignored" up s3://weir/worse
faults stale_list=1
refuse "and one whose listings are stale, in any mode" "would lose data" up s3://weir/stale --single-writer
faults
check "a store that was put right is probed again on demand" "$weir" store probe s3://weir/bad

# ---- bad days of a good store ----
faults busy=0.1 spoilt_put=0.2 lost_put=0.2 short_get=0.1 lying_get=0.1
start bad-days --size 256M "${small[@]}"
check "503s, bodies damaged on their way, lost answers, short GETs: fio sees nothing of them" run_fio --size=16M
check "flushed to the store" "$weir" volume flush bad-days --remote --wait --store "$store"
stop
rm -rf "$WEIR_DATA_DIR/volumes"
start bad-days "${small[@]}" --take-over
check "verified from the store alone" run_fio --size=16M --verify_only
for fault in busy spoilt_put lost_put short_get lying_get; do
    check "$fault happened" [ "$(fault_count "$fault")" -gt 0 ]
done
check "objects came with a checksum, which this store heeds" [ "$(fault_count checksums)" -gt 0 ]
faults
stop

# The journal is smaller than what fio writes: writers wait while the store is away.
start outage --size 256M "${small[@]}"
fio_slowly
sleep 3
faults down=1
sleep 10
faults
fio_ends "10 s without a store: no error at the client"
check "verified after the outage" run_fio --size=192M --verify_only
stop

# The next program would serve nobody before the store is back, so this one is not replaced meanwhile.
"$weir" serve --volume outage --store "$store" >"$work/weir.out" 2>"$work/weir.log" </dev/null &
weir_pid=$!
uri="nbd+unix:///outage?socket=$WEIR_DATA_DIR/nbd.sock"
wait_for_export "$uri"
faults down=1
kill -USR2 "$weir_pid"
check "without a store the program is not replaced" \
    wait_until "it is refused" logged "the program is not replaced: the store fails: .*gave up"
check "and volumes take writes on" timeout 10 qemu-io -f raw "$uri" -c "write -P 7 0 4k" -c flush
faults
kill -USR2 "$weir_pid"
check "with the store back it is" wait_until "it is replaced" logged "^replacing the program"
wait_for_export "$uri"
check "with what was written" timeout 10 qemu-io -f raw "$uri" -c "read -P 7 0 4k"
stop

start outage "${small[@]}"
fio_slowly
sleep 2
faults answer=404:NoSuchBucket
check "a deleted bucket is said in the log" wait_until "it is said" logged "no such bucket"
sleep 4
faults
fio_ends "and gives no error at the client once it is back"
stop

start outage "${small[@]}"
fio_slowly
sleep 2
stop_s3
sleep 5
start_versitygw versitygw "$s3_port" || not_ok "versitygw starts again"
fio_ends "a restart of the server gives no error at the client"
stop

# The suite of crates/weir-store, on real servers. A name that matches no test would pass, so one must have run.
if ! command -v cargo >/dev/null; then
    skip "the suite of weir-store on real servers: cargo is not installed"
else
    conforms() {
        env WEIR_STORE_CONFORMANCE_URL="s3://weir/$1" cargo test -q --manifest-path "$repository/Cargo.toml" \
            -p weir-store --test real_s3 >"$work/conforms" 2>&1 \
            && grep -q '^test result: ok. 1 passed' "$work/conforms" || { cat "$work/conforms"; return 1; }
    }
    check "versitygw conforms" conforms conformance-1
    start_minio minio-2 || not_ok "MinIO starts again"
    check "MinIO conforms" conforms conformance-2
fi
