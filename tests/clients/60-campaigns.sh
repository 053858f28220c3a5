#!/usr/bin/env bash
# The judges of the campaigns, then the campaigns, short: two kills under ext4 and one under PostgreSQL, one loss of the
# local disk, a few snapshots, one file system. What is not installed is said by the campaign, and a failure in CI.
# docs/operations/campaigns.md says how to run them in full.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
export WEIR_BIN=${WEIR_TEST_BINARY:-${WEIR_BIN:-$PWD/target/release/weir}}
status=0
(cd tests/campaigns && /usr/bin/python3 -m unittest -q test_judges) && echo "ok - campaigns: the judges" || {
    echo "not ok - campaigns: the judges"
    status=1
}
tests/campaigns/crash --rounds 2 --pgbench-rounds 1 || status=1
tests/campaigns/disk-loss --rounds 1 || status=1
tests/campaigns/snapshots --snapshots 6 --size 1G || status=1
tests/campaigns/filesystems --quick --only ext4 || status=1
exit "$status"
