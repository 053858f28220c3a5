#!/usr/bin/env bash
# _run.sh SCRIPT LOGS: runs a client script and shows what it said once it has ended, as others run beside it. Says so
# as well where it checked nothing, or ended with a failure that no check of it names.
name=$(basename "$1" .sh)
log=$2/client-$name.log
timeout --foreground -k 10 600 bash "$1" >"$log" 2>&1 </dev/null
status=$?
if [ "$status" = 124 ]; then
    echo "not ok - $name took more than 600 s" >>"$log"
elif [ "$status" != 0 ] && ! grep -q '^not ok - ' "$log"; then
    echo "not ok - $name ended with $status" >>"$log"
elif ! grep -qE '^(not ok|ok|skip) - ' "$log"; then
    echo "not ok - $name checked nothing" >>"$log"
fi
echo "# $name: $SECONDS s" >>"$log"
cat "$log"
