# shellcheck shell=bash
# S3 servers on loopback, for scripts that are ended by a trap which kills ${processes[@]}. `work` is their directory;
# they have tests/wait.sh.
# Each function sets AWS_ENDPOINT_URL and the credentials; the bucket `weir` exists then.
s3_tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
s3_python=/usr/bin/python3
export AWS_ACCESS_KEY_ID=weir-tests AWS_SECRET_ACCESS_KEY=only-for-tests AWS_REGION=us-east-1
export AWS_EC2_METADATA_DISABLED=true AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null
s3_bin=
s3_pid=
s3_data=
proxy_port=

# servers_or_skip: installs the servers and sets s3_bin. Where they cannot be built the script is skipped (calls `skip`
# of its library), where they do not build it fails; both end it. Nothing may be missing in CI.
servers_or_skip() {
    s3_bin=$("$s3_tools/install")
    case $? in
        0) s3_bin=$(tail -n 1 <<<"$s3_bin") ;;
        3)
            skip "S3 servers: $(tail -n 1 <<<"$s3_bin")"
            [ "${CI:-}" != true ]
            exit
            ;;
        *)
            not_ok "versitygw and MinIO are installed" "$s3_bin"
            exit 1
            ;;
    esac
}

free_port() {
    "$s3_python" -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# answers PORT PID: waits until that process listens there.
answers() { wait_seconds=30 wait_on=$2 wait_until "something listens at port $1" listens "$1"; }

# start_versitygw NAME [PORT]: objects are plain files below $work/NAME/weir.
start_versitygw() {
    s3_data=$work/$1
    s3_port=${2:-$(free_port)}
    mkdir -p "$s3_data"
    ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY \
        "$s3_bin/versitygw" -p "127.0.0.1:$s3_port" -q posix "$s3_data" >"$work/$1.log" 2>&1 </dev/null &
    s3_started
}

# start_minio NAME [PORT]
start_minio() {
    s3_data=$work/$1
    s3_port=${2:-$(free_port)}
    mkdir -p "$s3_data"
    MINIO_ROOT_USER=$AWS_ACCESS_KEY_ID MINIO_ROOT_PASSWORD=$AWS_SECRET_ACCESS_KEY MINIO_BROWSER=off \
        MINIO_UPDATE=off MINIO_CI_CD=1 "$s3_bin/minio" server --quiet --address "127.0.0.1:$s3_port" "$s3_data" \
        >"$work/$1.log" 2>&1 </dev/null &
    s3_started
}

s3_started() {
    s3_pid=$!
    processes+=("$s3_pid")
    export AWS_ENDPOINT_URL=http://127.0.0.1:$s3_port
    answers "$s3_port" "$s3_pid" || return 1
    wait_seconds=10 wait_on=$s3_pid wait_until "a bucket is made" "$s3_python" "$s3_tools/client.py" make weir
}

# stop_s3: kill -9 of the server started last.
stop_s3() {
    kill -KILL "$s3_pid"
    wait "$s3_pid" 2>/dev/null
}

# start_proxy: in front of the server started last; sets proxy_port and AWS_ENDPOINT_URL.
start_proxy() {
    proxy_port=$(free_port)
    "$s3_python" "$s3_tools/fault_proxy.py" serve "$proxy_port" "$s3_port" </dev/null &
    processes+=($!)
    answers "$proxy_port" $! || return 1
    export AWS_ENDPOINT_URL=http://127.0.0.1:$proxy_port
}
faults() { "$s3_python" "$s3_tools/fault_proxy.py" set "$proxy_port" "$@"; }
fault_count() { "$s3_python" "$s3_tools/fault_proxy.py" counts "$proxy_port" | awk -v n="$1" '$1 == n { print $2 }'; }
