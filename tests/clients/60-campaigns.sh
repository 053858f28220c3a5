#!/usr/bin/env bash
# The judges of the campaigns, then the campaigns, short: two kills under ext4 (and one under PostgreSQL
# where it is installed), one loss of the local disk, a few snapshots, one file system.
# docs/operations/campaigns.md says how to run them in full.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
export WEIR_BIN=${WEIR_TEST_BINARY:-${WEIR_BIN:-$PWD/target/release/weir}}
pgbench_rounds=0
for binary in /usr/lib/postgresql/*/bin/pgbench; do [ -x "$binary" ] && pgbench_rounds=1; done
[ "$pgbench_rounds" = 1 ] || echo "PostgreSQL is not installed: its part of the crash campaign is left out"
status=0
(cd tests/campaigns && /usr/bin/python3 -m unittest -q test_judges) && echo "ok - campaigns: the judges" || {
    echo "not ok - campaigns: the judges"
    status=1
}
tests/campaigns/crash --rounds 2 --pgbench-rounds "$pgbench_rounds" || status=1
tests/campaigns/disk-loss --rounds 1 || status=1
tests/campaigns/snapshots --snapshots 6 --size 1G || status=1
tests/campaigns/filesystems --quick --only ext4 || status=1
exit "$status"
