#!/usr/bin/env bash
# NBD under TLS with real clients: certificates, who may use what, renewal and revocation under load.
. "$(dirname "$0")/_lib.sh"

pki=$work/pki
export WEIR_PKI=$pki
issued() { echo "$pki/issued/$1"; }

# The authority.
refuse "nothing is issued without an authority" "make one with .weir pki init" "$weir" pki issue server
check "an authority is made" "$weir" pki init --name test
refuse "it is never replaced" "is there already" "$weir" pki init
check "a server gets a certificate" "$weir" pki issue server --host 127.0.0.1 --host localhost
for name in alice bob mallory; do
    check "$name gets one for clients" "$weir" pki issue "$name" --usage client
done
refuse "nobody gets a second one" "renew it with" "$weir" pki issue alice
refuse "a name that is none" "is no name for a certificate" "$weir" pki issue 'a b'
listed() { "$weir" pki list --output json | jq -e 'length == 4 and all(.state == "valid")'; }
check "all are listed" listed
verified() { openssl verify -CAfile "$pki/ca-cert.pem" "$(issued "$1")/$2-cert.pem"; }
check "openssl verifies the server's" verified server server
check "openssl verifies a client's" verified alice client
key_is_private() { [ "$(stat -c %a "$pki/ca-key.pem" "$(issued server)/server-key.pem" | sort -u)" = 600 ]; }
check "keys are their owner's alone" key_is_private
# A certificate of another authority, in the directory of somebody who trusts ours.
"$weir" pki --pki "$work/other" init >/dev/null 2>&1
"$weir" pki --pki "$work/other" issue alice >/dev/null 2>&1
stranger=$work/other/issued/alice
cp "$pki/ca-cert.pem" "$pki/ca-crl.pem" "$stranger"

# Settings.
refuse "a directory without certificates" "ca-cert.pem is missing" "$weir" serve --check --tls-certificates "$work"
refuse "one without a server's" "has no certificate for a server" "$weir" serve --check \
    --tls-certificates "$(issued alice)"
check "with certificates other machines may reach it" "$weir" serve --check --nbd-listen 0.0.0.0:0 \
    --tls-certificates "$(issued server)"
readable_is_named() {
    local key
    key=$(issued server)/server-key.pem
    chmod 644 "$key"
    "$weir" serve --check --tls-certificates "$(issued server)" 2>&1 \
        | grep "everybody on this host may read a private key"
    local said=$?
    chmod 600 "$key"
    return $said
}
check "a key that everybody may read is named" readable_is_named
of_others() {
    "$weir" serve --check --nbd-listen 127.0.0.1:0 --tls-certificates "$1" 2>&1 \
        | grep "^warning: the server's certificate (.*) is of no authority in ca-cert.pem.* from a public authority"
}
check "so is a server's certificate of another authority" of_others "$stranger"
check "and none of ours" test -z "$(of_others "$(issued server)")"
refuse "names without certificates" "tls-certificates" "$weir" serve --check --allow alice
exits() { local code=$1; shift; "$@" >/dev/null 2>&1; [ $? = "$code" ]; }
refuse "a version of TLS without certificates" "tls-min-version is given, and there are no certificates" \
    "$weir" serve --check --tls-min-version 1.2
check "as a mistake of whoever typed it" exits 2 "$weir" serve --check --tls-min-version 1.2
printf '[tls]\nmin_version = "1.2"\n' >"$work/version.toml"
refuse "in the file as well" "tls.min_version is given, and there are no certificates" \
    "$weir" serve --check --config "$work/version.toml"

printf '[nbd]\nlisten = "127.0.0.1:0"\n[[volumes]]\nname = "a"\nallow = ["x"]\n' >"$work/names.toml"
named() { "$weir" serve --check --config "$work/names.toml" 2>&1 | grep -q "^warning: nobody gets to.*(a) over TCP"; }
check "names without certificates are warned of" named

cat >"$work/weir.toml" <<END
[nbd]
listen = "127.0.0.1:0"
[api]
listen = "127.0.0.1:0"
allow = ["alice"]
[tls]
certificates = "$(issued server)"
[[volumes]]
name = "open"
size = "64M"
[[volumes]]
name = "closed"
size = "32M"
allow = ["alice"]
END
: >"$work/weir.log"
"$weir" serve --config "$work/weir.toml" --nbd-socket "$work/nbd.sock" >"$work/weir.out" 2>"$work/weir.log" </dev/null &
weir_pid=$!
wait_on=$weir_pid wait_log=$work/weir.log wait_until "weir serve listens" grep '^listening at nbds://' "$work/weir.log" || exit 1
port=$(sed -n 's|^listening at nbds://127.0.0.1:\([0-9]*\).*|\1|p' "$work/weir.log")
# at NAME EXPORT: the export as the holder of that name reaches it.
at() { echo "nbds://127.0.0.1:$port/$2?tls-certificates=$(issued "$1")"; }

# Who gets what.
size_is() { [ "$(nbdinfo --size "$1")" = "$2" ]; }
check "a client with a certificate" size_is "$(at bob open)" $((64 << 20))
check "one that the list names" size_is "$(at alice closed)" $((32 << 20))
refuse "one that it does not name" "policy" nbdinfo --size "$(at bob closed)"
check "which the log says" grep -q 'bob.*closed\|closed.*bob' "$work/weir.log"
lists() { nbdinfo --list "$(at "$1" "")" | sed -n 's/^export="\(.*\)":/\1/p' | paste -sd,; }
lists_are() { [ "$(lists "$1")" = "$2" ]; }
check "everybody sees in the list what is for all" lists_are bob open
check "and what is for them" lists_are alice closed,open
refuse "in the clear nothing is reached" "TLS|takes nothing but" nbdinfo --size "nbd://127.0.0.1:$port/open"
refuse "not even the list" "list request" nbdinfo --list "nbd://127.0.0.1:$port"
refuse "a certificate of another authority" "." nbdinfo --size \
    "nbds://127.0.0.1:$port/open?tls-certificates=$stranger"
mkdir "$work/none" && cp "$pki/ca-cert.pem" "$work/none"
refuse "no certificate at all" "." nbdinfo --size "nbds://127.0.0.1:$port/open?tls-certificates=$work/none"
check "the unix socket is for users of this host, without TLS" size_is "nbd+unix:///closed?socket=$work/nbd.sock" \
    $((32 << 20))
check "and with it" size_is "nbds+unix:///closed?socket=$work/nbd.sock&tls-certificates=$(issued alice)&tls-hostname=server" \
    $((32 << 20))

# Protocols: nothing but TLS 1.3.
cat >"$work/versions.py" <<'END'
import socket, ssl, struct, sys
port, certificates = int(sys.argv[1]), sys.argv[2]
V = ssl.TLSVersion
def attempt(version, ciphers=None):
    s = socket.create_connection(("127.0.0.1", port), timeout=10)
    assert s.recv(18, socket.MSG_WAITALL)[:8] == b"NBDMAGIC"
    s.sendall(struct.pack(">IQII", 3, 0x49484156454F5054, 5, 0))
    assert struct.unpack(">QIII", s.recv(20, socket.MSG_WAITALL))[2] == 1, "STARTTLS is refused"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates + "/ca-cert.pem")
    context.load_cert_chain(certificates + "/client-cert.pem", certificates + "/client-key.pem")
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with context.wrap_socket(s, server_hostname="server") as tls:
        # A list of exports: TLS 1.3 says nothing of a refused certificate before it is used.
        tls.sendall(struct.pack(">QII", 0x49484156454F5054, 3, 0))
        assert len(tls.recv(1)) == 1
        return tls.cipher()
for version in (V.TLSv1, V.TLSv1_1, V.TLSv1_2, V.TLSv1_3):
    try:
        print(version.name, "accepted", *attempt(version))
    except (ssl.SSLError, ConnectionError) as error:
        print(version.name, "refused", str(error).split("(")[0])
END
/usr/bin/python3 -W ignore "$work/versions.py" "$port" "$(issued alice)" >"$work/versions.out" 2>&1
sed 's/^/    /' "$work/versions.out"
only_13() { [ "$(grep -c ' refused ' "$work/versions.out")" = 3 ] && grep -q '^TLSv1_3 accepted' "$work/versions.out"; }
check "TLS 1.3 alone is spoken" only_13

# What is in the clear behind a request for TLS ends the connection.
injected() {
    /usr/bin/python3 - "$port" <<'END'
import socket, struct, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10)
s.recv(18, socket.MSG_WAITALL)
s.sendall(struct.pack(">IQII", 3, 0x49484156454F5054, 5, 0) + struct.pack(">QII", 0x49484156454F5054, 3, 0))
got = b""
while more := s.recv(1000):
    got += more
assert len(got) <= 20, got
END
}
check "what is sent in the clear behind the request for TLS" injected
check "is named in the log" grep -q "in the clear behind its request for TLS" "$work/weir.log"
broken_off() {
    /usr/bin/python3 - "$port" <<'END'
import socket, sys
for _ in range(500):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10)
    s.recv(18, socket.MSG_WAITALL)
    s.sendall(b"\xff\xff\xff\xff")
    while s.recv(1000):
        pass
    s.close()
END
}
check "hundreds of handshakes that make no sense" broken_off
unknown_flags() { grep -c "unknown flags" "$work/weir.log"; }
few_lines() { echo "$(unknown_flags) lines"; [ "$(unknown_flags)" -ge 1 ] && [ "$(unknown_flags)" -lt 50 ]; }
check "are a few lines in the log" few_lines

# The API under TLS.
api=$(sed -n 's|^API at \(https://[^ ]*\).*|\1|p' "$work/weir.log")
call() {
    curl --silent --show-error --fail-with-body --max-time 20 --cacert "$pki/ca-cert.pem" \
        --cert "$(issued "$1")/client-cert.pem" --key "$(issued "$1")/client-key.pem" "$api/v1/node"
}
expiry() {
    call alice | jq -e '.certificates | map(select(.role == "server"))[0] | .name == "server" and .expires > now'
}
check "the API answers under TLS, and says when certificates expire" expiry
refuse "to those that are named" "not among the names" call bob
bare() { curl --silent --show-error --fail --max-time 20 --cacert "$pki/ca-cert.pem" "$1/v1/node"; }
refuse "not without a certificate" "." bare "$api"
refuse "nor in the clear" "." bare "http${api#https}"
check "the log names the refusals" grep -q "API was refused.*client=.127.0.0.1:" "$work/weir.log"
handshake() { openssl s_client -connect "${api#https://}" -CAfile "$pki/ca-cert.pem" -verify_return_error "$@" </dev/null; }
check "openssl s_client finds TLS 1.3 there" sh -c "openssl s_client -connect ${api#https://} -CAfile $pki/ca-cert.pem \
    -verify_return_error </dev/null 2>&1 | grep -q 'TLSv1.3'"
# Each protocol, cipher and group by itself: the table of docs/operations/conformance.md.
for protocol in tls1 tls1_1 tls1_2; do
    refuse "$protocol is refused" "protocol version|alert|no protocols" handshake "-$protocol" -cipher 'ALL:@SECLEVEL=0'
done
agreed() { grep -q "$1" <<<"$(handshake -tls1_3 "${@:2}" 2>/dev/null)"; }
for cipher in TLS_AES_256_GCM_SHA384 TLS_AES_128_GCM_SHA256 TLS_CHACHA20_POLY1305_SHA256; do
    check "$cipher is taken" agreed "Cipher is $cipher" -ciphersuites "$cipher"
done
for cipher in TLS_AES_128_CCM_SHA256 TLS_AES_128_CCM_8_SHA256; do
    refuse "$cipher is refused" "handshake failure|alert" handshake -tls1_3 -ciphersuites "$cipher"
done
for group in X25519 P-256 P-384; do
    check "$group is taken" agreed "Server Temp Key: .*\(X25519\|prime256v1\|secp384r1\)" -groups "$group"
done
for group in P-521 X448 ffdhe2048 ffdhe3072; do
    refuse "$group is refused" "handshake failure|alert" handshake -tls1_3 -groups "$group"
done

# Bytes.
head -c $((64 << 20)) /dev/urandom >"$work/image"
check "nbdcopy writes under TLS" nbdcopy --connections=4 "$work/image" "$(at bob open)"
same() { nbdcopy --connections=4 "$(at bob open)" - | cmp - "$work/image"; }
check "and reads it back" same
qemu() {
    local verb=$1 who=$2
    shift 2
    qemu-img "$verb" --object "tls-creds-x509,id=tls,dir=$(issued "$who"),endpoint=client" --image-opts "$@" \
        "driver=nbd,host=127.0.0.1,port=$port,export=open,tls-creds=tls,tls-hostname=server"
}
check "qemu-img looks at it" qemu info bob
qemu_same() {
    qemu-img compare --object "tls-creds-x509,id=tls,dir=$(issued bob),endpoint=client" --image-opts \
        "driver=nbd,host=127.0.0.1,port=$port,export=open,tls-creds=tls,tls-hostname=server" \
        "driver=raw,file.driver=file,file.filename=$work/image"
}
check "qemu-img compares it" qemu_same

# Renewal under load: no client sees an error.
/usr/bin/python3 - "$(at bob open)" "$work" >"$work/load.out" 2>&1 <<'END' &
import nbd, os, sys
uri, work = sys.argv[1:]
h = nbd.NBD(); h.set_uri_allow_local_file(True); h.connect_uri(uri)
count = 0
while not os.path.exists(work + "/enough"):
    data = os.urandom(8192); at = count % 4096 * 8192
    h.pwrite(data, at); assert h.pread(8192, at) == data
    count += 1
    if count == 10:
        open(work + "/begun", "w")
h.flush(); h.shutdown(); print("operations:", count)
END
load=$!
processes+=("$load")
wait_until "the load begins" test -e "$work/begun"
before=$(openssl x509 -noout -serial -in "$(issued server)/server-cert.pem")
loaded() { [ "$(grep -c 'the certificate of server is loaded' "$work/weir.log")" = "$1" ]; }
for turn in 1 2 3; do
    check "the server's certificate is renewed" "$weir" pki renew server --days 30
    kill -HUP "$weir_pid"
    eventually "turn $turn: it is loaded" loaded "$turn"
    check "turn $turn: new clients are served" size_is "$(at alice open)" $((64 << 20))
done
touch "$work/enough"
if wait "$load"; then
    ok "the client under load saw no error"
else
    not_ok "the client under load saw no error" "$(cat "$work/load.out")"
fi
changed() { [ "$before" != "$(openssl x509 -noout -serial -in "$(issued server)/server-cert.pem")" ]; }
check "the certificate is another one" changed

# A bad file: what is in use stays in use.
cp "$(issued server)/server-cert.pem" "$work/good.pem"
echo nonsense >"$(issued server)/server-cert.pem"
kill -HUP "$weir_pid"
eventually "a bad file is named" grep -q "server-cert.pem: it holds no certificate in PEM form" "$work/weir.log"
# It ends with another code than 0 where something is degraded.
says() { { "$weir" status || true; } | grep -q -- "$1"; }
check "the status says so" says "the certificates were not loaded at the last reload"
check "and the old certificate goes on" size_is "$(at alice open)" $((64 << 20))
cp "$work/good.pem" "$(issued server)/server-cert.pem"

# A bad configuration, and one that changes what only a start brings.
cp "$work/weir.toml" "$work/good.toml"
echo 'nonsense = 1' >>"$work/weir.toml"
kill -HUP "$weir_pid"
eventually "a bad configuration is in the status" says "the configuration was not loaded at the last reload.*nonsense"
sed 's/^\[api\]$/[limits]\nupload_requests = 1000\n[api]/; s/^\(\[nbd\]\)$/\1\nmode = "0600"/' "$work/good.toml" \
    >"$work/weir.toml"
kill -HUP "$weir_pid"
eventually "what counts from the next start on is named" \
    grep -q 'changed of these counts from the next start on: \[nbd\], \[limits\]$' "$work/weir.log"
fine() { ! says "not loaded at the last reload"; }
eventually "and the status is good again" fine
cp "$work/good.toml" "$work/weir.toml"

# Revocation ends what is open.
/usr/bin/python3 - "$(at mallory open)" "$work" >"$work/mallory.out" 2>&1 <<'END' &
import nbd, sys, time
uri, work = sys.argv[1:]
h = nbd.NBD(); h.set_uri_allow_local_file(True); h.connect_uri(uri)
open(work + "/mallory", "w")
try:
    while True:
        h.pread(512, 0); time.sleep(0.01)
except nbd.Error as error:
    print("ended:", error)
END
mallory=$!
processes+=("$mallory")
wait_until "mallory is connected" test -e "$work/mallory"
check "mallory is revoked" "$weir" pki revoke mallory
kill -HUP "$weir_pid"
eventually "and disconnected" grep -q '^ended:' "$work/mallory.out"
check "which the log says" grep -q "certificate is not accepted any more" "$work/weir.log"
refuse "mallory gets nothing any more" "." nbdinfo --size "$(at mallory open)"
check "others do" size_is "$(at bob open)" $((64 << 20))
revoked() { "$weir" pki list --output json | jq -e 'map(select(.name == "mallory"))[0].state == "revoked"'; }
check "the list says so" revoked

# A list of another authority, one that is gone, and one that is late.
list=$(issued server)/ca-crl.pem
cp "$list" "$work/good.crl"
cp "$work/other/ca-crl.pem" "$list"
wrong="ca-crl.pem: .*(no list of an authority|not signed by the authority)"
refuse "a list of another authority" "$wrong" "$weir" serve --check --tls-certificates "$(issued server)"
kill -HUP "$weir_pid"
eventually "is named at a reload" grep -qE "$wrong" "$work/weir.log"
refuse "and mallory stays revoked" "." nbdinfo --size "$(at mallory open)"
rm "$list"
kill -HUP "$weir_pid"
eventually "a list that is gone is named" grep -q "ca-crl.pem is missing" "$work/weir.log"
refuse "mallory stays revoked still" "." nbdinfo --size "$(at mallory open)"
printf '%s\n' '[ca]' default_ca=it '[it]' "database=$work/index.txt" default_md=sha256 "crlnumber=$work/number" \
    crl_extensions=of_list '[of_list]' authorityKeyIdentifier=keyid >"$work/ca.conf"
: >"$work/index.txt"
# Of the number of the good one: an older list is refused.
openssl crl -in "$work/good.crl" -noout -crlnumber | sed 's/.*=\(0x\)\{0,1\}//' >"$work/number"
check "openssl makes a list that is late" openssl ca -config "$work/ca.conf" -gencrl -keyfile "$pki/ca-key.pem" \
    -cert "$pki/ca-cert.pem" -crl_lastupdate 20250101000000Z -crl_nextupdate 20250201000000Z -out "$list"
kill -HUP "$weir_pid"
# It ends with an error where something is wrong.
late() { grep -q "to be renewed by 2025-02-01T00:00:00Z" <<<"$("$weir" status)"; }
eventually "status says that it is late" late
check "and so does the log" grep -q "was to be renewed by 2025-02-01T00:00:00Z" "$work/weir.log"
check "it ends no service" size_is "$(at bob open)" $((64 << 20))
cp "$work/good.crl" "$list"
kill -HUP "$weir_pid"
in_time() { ! late; }
eventually "a new list is in time" in_time
refuse "and names mallory" "." nbdinfo --size "$(at mallory open)"

# TLS 1.2, where it is allowed.
listed_by_kernel_client() {
    nbd-client -l localhost "$port" -certfile "$(issued bob)/client-cert.pem" -keyfile "$(issued bob)/client-key.pem" \
        -cacertfile "$pki/ca-cert.pem" | grep -qx open
}
shown() { "$weir" status | grep -q "$1"; }
check "status says that 1.3 alone is spoken" shown 'TLS 1.3 alone is spoken'
if command -v nbd-client >/dev/null; then
    refuse "nbd-client speaks 1.2 only" "." listed_by_kernel_client
    check "which the log names" grep -q SupportedVersionsExtensionRequired "$work/weir.log"
fi
sed -i 's/^\[tls\]$/[tls]\nmin_version = "1.2"/' "$work/weir.toml"
kill -HUP "$weir_pid"
eventually "1.2 is spoken from a reload on" shown 'TLS is spoken from version 1.2 on'
if command -v nbd-client >/dev/null; then
    check "nbd-client gets through then" listed_by_kernel_client
else
    skip "nbd-client is not installed"
fi
/usr/bin/python3 -W ignore "$work/versions.py" "$port" "$(issued alice)" >"$work/versions.out" 2>&1
sed 's/^/    /' "$work/versions.out"
only_12() {
    [ "$(grep -c ' refused ' "$work/versions.out")" = 2 ] && grep -q '^TLSv1_3 accepted' "$work/versions.out" \
        && grep -q '^TLSv1_2 accepted ECDHE-ECDSA-CHACHA20-POLY1305' "$work/versions.out"
}
check "1.2 and 1.3, and nothing older" only_12
for protocol in tls1 tls1_1; do
    refuse "$protocol is refused still" "protocol version|alert|no protocols" handshake "-$protocol" \
        -cipher 'ALL:@SECLEVEL=0'
done
agreed_old() { grep -q "Cipher is $1" <<<"$(handshake -tls1_2 -cipher "$1" 2>/dev/null)"; }
for cipher in ECDHE-ECDSA-CHACHA20-POLY1305 ECDHE-ECDSA-AES256-GCM-SHA384 ECDHE-ECDSA-AES128-GCM-SHA256; do
    check "$cipher is taken" agreed_old "$cipher"
done
for cipher in ECDHE-ECDSA-AES256-SHA384 ECDHE-ECDSA-AES128-SHA ECDHE-ECDSA-AES128-CCM DHE-RSA-AES256-GCM-SHA384 \
    AES256-GCM-SHA384; do
    refuse "$cipher is refused" "handshake failure|alert" handshake -tls1_2 -cipher "$cipher:@SECLEVEL=0"
done
sed -i '/^min_version/d' "$work/weir.toml"
kill -HUP "$weir_pid"
eventually "and 1.3 alone again" shown 'TLS 1.3 alone is spoken'
refuse "a version that is none" "1.2 or 1.3" "$weir" serve --check --tls-min-version 1.1

# The list of names, changed while it serves.
sed -i 's/allow = \["alice"\]/allow = ["alice", "bob"]/' "$work/weir.toml"
kill -HUP "$weir_pid"
eventually "bob may use it from now on" size_is "$(at bob closed)" $((32 << 20))

# A copy through the process that serves it goes by its unix socket.
check "an export of a volume that is served under TLS" "$weir" volume export open "$work/out.img"

# A file that does not answer at a reload keeps nobody waiting.
mkfifo "$work/silent"
mv "$(issued server)/server-cert.pem" "$work/good.pem"
ln -s "$work/silent" "$(issued server)/server-cert.pem"
kill -HUP "$weir_pid"
eventually "a file that does not answer is in the status" says "the settings cannot be read: a file did not answer"
check "and so it is for the certificates" says "the certificates cannot be read: a file did not answer"
put_in_place() { ln -sf "$1" "$(issued server)/server-cert.pem"; }
put_in_place "$work/good.pem"
kill -HUP "$weir_pid"
answers() { ! says "cannot be read"; }
eventually "one in its place is read by the next signal" answers
put_in_place "$work/silent"
check "clients are served meanwhile" size_is "$(at alice open)" $((64 << 20))
kill -HUP "$weir_pid"
kill -TERM "$weir_pid"
eventually "and the process ends when it is told to" has_ended "$weir_pid"
rm "$(issued server)/server-cert.pem"
cp "$work/good.pem" "$(issued server)/server-cert.pem"
wait "$weir_pid"
code=$?
weir_pid=
check "in order" [ "$code" = 0 ]

# Up.
start solo --size 16M --nbd-listen 127.0.0.1:0 --tls-certificates "$(issued server)" --allow alice
solo() { echo "$uri?tls-certificates=$(issued "$1")"; }
check "weir up prints nbds" grep -q '^nbds://' <<<"$uri"
check "one volume for one client" size_is "$(solo alice)" $((16 << 20))
refuse "and no other" "policy" nbdinfo --size "$(solo bob)"
stop
start mixed --size 16M --nbd-listen 127.0.0.1:0 --tls-certificates "$(issued server)" --insecure
check "with --insecure clients in the clear are served" size_is "$uri" $((16 << 20))
check "and those under TLS" size_is "nbds${uri#nbd}?tls-certificates=$(issued alice)" $((16 << 20))
stop
