#!/usr/bin/env bash
# Encrypted volumes: nothing of what clients write is in the store or the journal, and only the right key opens them.
. "$(dirname "$0")/_lib.sh"

# A directory, so that it can be searched.
export WEIR_STORE=file://$work/store
mkdir "$work/store"
keys=$work/keys
head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$keys"
head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$work/other"
chmod 600 "$keys" "$work/other"
mark="marked plaintext of this test: $$-$RANDOM."
# 8 MiB of it, in files that do not shrink under compression either: each line ends with random digits.
while :; do echo "$mark $RANDOM$RANDOM$RANDOM"; done | head -c 8M >"$work/pattern"

refuses() { ! "$weir" "${@:2}" >"$work/out" 2>&1 && grep -qE -- "$1" "$work/out" || { cat "$work/out"; return 1; }; }
prints() { "$weir" "${@:2}" >"$work/out" 2>&1 && grep -qE -- "$1" "$work/out" || { cat "$work/out"; return 1; }; }
writes() { nbdcopy --flush "$work/pattern" "$uri" 2>&1 || qemu-img convert -n -O raw -f raw "$work/pattern" "$uri"; }
holds() { qemu-img convert -f raw -O raw "$1" "$work/back" && cmp -n 8388608 "$work/pattern" "$work/back"; }
# The mark is nowhere: there are objects and a journal to be searched, and the search itself works.
hidden() {
    [ -n "$(find "$work/store" -path '*/log/*' -type f -size +64k)" ] || { echo "no objects"; return 1; }
    [ -n "$(find "$WEIR_DATA_DIR" -name journal -size +0)" ] || { echo "no journal"; return 1; }
    grep -rlaF -- "$mark" "$work/store" "$WEIR_DATA_DIR"
    [ $? = 1 ]
}
shows_in() { grep -rqaF -- "$mark" "$1"; }
key() { "$weir" volume show "$1" | sed -n 's/^ *key  *//p'; }

# The same volume without a key, with the same flags: its mark must be found in both places.
start plain --size 64M --batch-age 1
check "write the mark to a plain volume" writes
check "it is in its journal" shows_in "$WEIR_DATA_DIR"
check "flush it" "$weir" volume flush plain --remote --wait
check "it is in its objects, so the search works" shows_in "$work/store"
refuse "a search that finds it says so" "store" hidden
stop
check "a snapshot of it" "$weir" snapshot create plain@one
check "no clone of it is encrypted" refuses 'plain@one cannot be encrypted' volume clone plain@one clone --encrypt
check "and none is made" refuses 'no volume "clone"' volume show clone
check "the snapshot goes" "$weir" snapshot delete plain@one
check "delete it" "$weir" volume delete plain --yes
check "without a key none is made" refuses 'no key to encrypt with' volume create secret --size 64M --encrypt
check "nor was it" refuses 'no volume "secret"' volume show secret
export WEIR_KEY_FILE=$keys
check "make one" "$weir" volume create secret --size 64M --encrypt
check "show says so" prints '^ *encryption +aes-256-gcm' volume show secret
check "an import is encrypted as well" "$weir" volume import "$work/pattern" imported --encrypt

start secret --batch-age 1
check "write the mark" writes
check "read it back" holds "$uri"
check "nothing of it is in store or journal" hidden
crash
check "after a crash it is hidden" hidden
start secret
check "and there" holds "$uri"
check "another key is refused while it is served" \
    refuses 'already|served|serves|in use' volume rekey secret --new-key-file "$work/other"
check "a snapshot" "$weir" snapshot create secret@one
stop
check "closed, it is hidden" hidden
"$weir" serve --volume secret >"$work/weir.out" 2>"$work/weir.log" </dev/null &
weir_pid=$!
wait_for_export "nbd+unix:///secret?socket=$WEIR_DATA_DIR/nbd.sock"
cp "$keys" "$work/kept"
cat "$work/other" >"$keys"
kill -USR2 "$weir_pid"
wait_until "the program is not replaced where the next one has another key" \
    grep -q 'not replaced: volume secret could not be opened again: .* key ' "$work/weir.log"
cat "$work/kept" >"$keys"
stop
check "the imported one is there" "$weir" volume export imported "$work/exported"
check "and whole" cmp "$work/pattern" "$work/exported"

unset WEIR_KEY_FILE
contents() { find "$work/store" -type f ! -path '*lease*' -print0 | sort -z | xargs -0 sha256sum; }
before=$(contents)
check "without a key" refuses 'no key is configured' up secret -- true
check "with another one" \
    refuses 'is encrypted under key [0-9a-f]{32}, and key file .* has key' up secret --key-file "$work/other" -- true
check "with no file" refuses 'gives no key: No such file' up secret --key-file "$work/none" -- true
check "with a command that fails" \
    refuses 'exit status: 3: denied' up secret --key-command 'echo denied >&2; exit 3' -- true
check "with one that prints something else" refuses 'line 1 is no key' up secret --key-command 'echo hello' -- true
chmod 644 "$keys"
check "with one that everybody may read" refuses 'chmod o= ' up secret --key-file "$keys" -- true
chmod 600 "$keys"
check "with both a file and a command" refuses 'cannot be used with' volume show secret --key-file a --key-command b
same_contents() { [ -n "$before" ] && [ "$before" = "$(contents)" ]; }
check "nothing was written by any of it" same_contents
check "the key from a command" "$weir" up secret --key-command "cat $keys" -- true
check "the key from a variable" env WEIR_KEY="$(cat "$keys")" "$weir" up secret -- true
check "check without the key says what it did" prints 'only checksums were checked' volume check secret
check "and with it" prints 'it is whole' volume check secret --key-file "$keys"

old=$(key secret)
check "another key" "$weir" volume rekey secret --key-file "$keys" --new-key-file "$work/other"
check "it has another name" [ "$old" != "$(key secret)" ]
check "the old one is refused" refuses 'is encrypted under key' up secret --key-file "$keys" -- true
check "the new one opens it" "$weir" up secret --key-file "$work/other" -- \
    bash -c "
    qemu-img convert -f raw -O raw 'nbd+unix:///secret?socket=$WEIR_DATA_DIR/nbd/secret.sock' '$work/back' &&
    cmp -n 8388608 '$work/pattern' '$work/back'"
check "a file with both" bash -c "{ cat '$keys'; echo; cat '$work/other'; } >'$work/both'"
chmod 600 "$work/both"
check "opens both" "$weir" volume copy imported copied --key-file "$work/both" --encrypt
check "what is copied is hidden" hidden
check "a plain volume gets no key" bash -c "'$weir' volume create bare --size 1M >/dev/null"
check "and is told what to do" refuses 'weir volume copy' volume rekey bare --key-file "$keys"

# A journal that its volume went on without is not given up for want of the key: what it holds is not known.
export WEIR_STORE=file://$work/shared WEIR_LEASE=3
other() { WEIR_DATA_DIR=$work/elsewhere "$@"; }
start left --size 64M --encrypt --key-file "$keys" --batch-age 60
check "a write that only the journal holds" qemu-io -f raw "$uri" -c "write -P 0x11 0 1M" -c flush
crash
check "another host takes the volume over" other "$weir" up left --take-over --key-file "$keys" -- true
left=$("$weir" volume show left --output json | sed -n 's/.*"id": "\(.*\)".*/\1/p' | head -n 1)
check "a volume with a journal of its own here" "$weir" up spare --size 1M --encrypt --key-file "$keys" -- true
check "is deleted without the key: nobody went on without it" "$weir" volume delete spare --yes
check "the one that was taken over is not" \
    refuses 'what that holds is not known: .*no key is configured' volume delete left --yes
check "the journal is there" test -f "$WEIR_DATA_DIR/volumes/$left/journal"
check "with the key it says what it holds" \
    refuses 'holds [0-9]+ written blocks' volume delete left --yes --key-file "$keys"
check "with consent no key is needed" "$weir" volume delete left --yes --discard-journal
check "and the journal is gone" test ! -e "$WEIR_DATA_DIR/volumes/$left"
