//! What a run must have met: a simulation in which a verb never succeeds, or never falls together with a crash, shows
//! nothing about it.

use crate::remote::REMOTE;
use crate::report::Report;
use crate::run;

/// Fewest seeds, of those with as many nodes, in which something is expected before it is missed: by chance there may
/// be a third of that, not less.
const EXPECTED_MIN: u64 = 15;

/// Share of what is expected that must be there.
const SHARE: u64 = 3;

/// Event, and in how many of a thousand seeds with one node it is met.
const ONE_NODE: &[(&str, u64)] = &[
    ("all snapshots deleted", 173),
    ("clone beside its volume", 40),
    ("clone deleted", 73),
    ("clone judged", 106),
    ("batch", 999),
    ("  clone made", 106),
    ("closed: clean", 553),
    ("  compacted", 120),
    ("  copy adopted", 170),
    ("  copy not gone on with", 110),
    ("crash: while repairing", 73),
    ("directory copied", 260),
    ("directory set back", 232),
    ("disk: a byte rotted", 126),
    ("everything deleted", 146),
    ("promoted", 200),
    ("  rekeyed", 66),
    ("  replica looked at", 260),
    ("  replicator ended", 80),
    ("  resized", 446),
    ("  rolled back", 33),
    ("  root moved", 100),
    ("  snapshot deleted", 180),
    ("  snapshot taken", 286),
    ("  snapshots compared", 133),
    ("store set back", 13),
    ("superseded journal given up", 220),
    ("pair: clone x crash", 80),
    ("pair: clone x deletion of a snapshot", 113),
    ("pair: clone x snapshot", 100),
    ("pair: compaction x crash", 313),
    ("pair: compaction x outage", 60),
    ("pair: compaction x snapshot", 93),
    ("pair: deletion of a snapshot x crash", 60),
    ("pair: deletion of a snapshot x rollback", 34),
    ("pair: deletion of a snapshot x shrink", 93),
    ("pair: grow x crash", 146),
    ("pair: grow x outage", 73),
    ("pair: grow x shrink", 220),
    ("pair: grow x snapshot", 113),
    ("pair: replication x crash", 200),
    ("pair: replication x outage", 100),
    ("pair: replication x shrink", 60),
    ("pair: replication x snapshot", 133),
    ("pair: shrink x crash", 60),
    ("pair: shrink x snapshot", 120),
    ("pair: snapshot x crash", 326),
    ("pair: snapshot x outage", 146),
    ("attached", 608),
    ("attached: clients are handed off", 631),
    ("burst", 677),
    ("client gave a silent connection up", 181),
    ("client leaves", 223),
    ("connected", 681),
    ("connection falls silent", 267),
    ("connection lost in a reply", 319),
    ("connection lost in a request", 327),
    ("connection reset", 286),
    ("connection stalls", 273),
    ("connections refused", 292),
    ("  detached", 455),
    ("detached: its process lives on", 170),
    ("lost write settled", 296),
    ("slow reader", 210),
    ("  stranger gone", 312),
    ("pair: close x client connected", 218),
    ("pair: close x write in flight", 49),
    ("pair: connection lost x flush", 80),
    ("pair: connection lost x read", 288),
    ("pair: connection lost x write", 362),
    ("pair: detach x client connected", 448),
    ("pair: detach x write in flight", 346),
    ("pair: half-open x close", 40),
    ("pair: half-open x detach", 194),
    ("pair: half-open x resize", 22),
    ("pair: overlapping writes x other connection", 437),
    ("pair: overlapping writes x same connection", 673),
    ("pair: resize x client connected", 369),
    ("pair: resize x write in flight", 275),
    ("heard: another size", 523),
    ("heard: another content", 13),
    ("heard: a failure", 76),
    ("limit lowered", 430),
    ("limit raised", 403),
    ("limit removed", 410),
    ("opened with a limit", 473),
    ("operations delayed", 466),
    ("trace: requests dropped", 190),
    ("trace: requests recorded", 266),
    ("pair: detach x operations at the limit", 90),
    ("pair: limit lowered x operations at the limit", 73),
    ("pair: limit raised x operations at the limit", 343),
    ("pair: limit removed x operations at the limit", 323),
    ("pair: resize x operations at the limit", 116),
    ("pair: snapshot x operations at the limit", 116),
    ("pair: snapshot x write in flight", 256),
    ("paced: copies wait for leave", 734),
    ("paced: uploads wait for leave", 996),
    ("rpo missed", 992),
    ("cache: as it was left", 23),
    ("cache: bytes rotted", 200),
    ("cache: read after a crash", 200),
    ("cache: reads answered", 200),
    ("cache: reads not answered", 200),
    ("cache: saved", 23),
    ("pair: close x dirty stage", 16),
    ("pair: remote flush x dirty stage", 90),
    ("pair: snapshot x dirty stage", 50),
];

/// The same with two nodes.
const TWO_NODES: &[(&str, u64)] = &[
    ("  compacted", 296),
    ("crash: while opening", 368),
    ("node cut off", 696),
    ("node stopped", 648),
    ("node stopped, clock as well", 204),
    ("owner ended by itself", 120),
    ("owner superseded", 676),
    ("  replica looked at", 120),
    ("  resized", 476),
    ("  root moved", 116),
    ("  snapshot deleted", 416),
    ("  snapshot taken", 432),
    ("  snapshots compared", 344),
    ("  takeover changed", 328),
    ("pair: compaction x crash", 148),
    ("pair: compaction x takeover", 32),
    ("pair: deletion of a snapshot x crash", 180),
    ("pair: deletion of a snapshot x takeover", 100),
    ("pair: grow x crash", 104),
    ("pair: grow x outage", 80),
    ("pair: grow x shrink", 380),
    ("pair: grow x takeover", 40),
    ("pair: replication x crash", 128),
    ("pair: replication x takeover", 56),
    ("pair: shrink x crash", 184),
    ("pair: shrink x outage", 100),
    ("pair: shrink x snapshot", 172),
    ("pair: shrink x takeover", 48),
    ("pair: snapshot x crash", 188),
    ("pair: snapshot x outage", 144),
    ("pair: snapshot x takeover", 44),
    ("pair: takeover set x crash", 15),
    ("pair: takeover set x outage", 40),
    ("answered before it was superseded", 7),
    ("attached", 559),
    ("attached: clients are handed off", 543),
    ("connected", 681),
    ("connection lost in a reply", 366),
    ("connection lost in a request", 368),
    ("  detached", 382),
    ("lost write settled", 296),
    ("pair: connection lost x flush", 110),
    ("pair: connection lost x write", 358),
    ("pair: detach x write in flight", 299),
    ("pair: half-open x detach", 269),
    ("pair: half-open x resize", 56),
    ("pair: overlapping writes x other connection", 292),
    ("pair: resize x client connected", 353),
    ("pair: resize x write in flight", 214),
    ("heard: another size", 546),
    ("heard: a failure", 693),
    ("limit raised", 480),
    ("pair: detach x operations at the limit", 90),
    ("pair: limit raised x operations at the limit", 470),
    ("pair: limit removed x operations at the limit", 453),
    ("pair: resize x operations at the limit", 183),
    ("pair: snapshot x operations at the limit", 146),
    ("pair: snapshot x write in flight", 263),
    ("paced: copies wait for leave", 710),
    ("paced: uploads wait for leave", 995),
    ("rpo missed", 986),
];

/// The same with remote volumes.
const REMOTES: &[(&str, u64)] = &[
    ("another client tries to write", 56),
    ("another client writes", 46),
    ("call misses its deadline", 110),
    ("change", 1000),
    ("change whose fate is not known", 37),
    ("client killed", 231),
    ("client opens again", 152),
    ("connection falls silent", 262),
    ("connection lost in a message", 351),
    ("connection stalls", 266),
    ("connections cut", 439),
    ("connections refused", 178),
    ("exclusive access lost", 40),
    ("flush", 1000),
    ("forced change", 998),
    ("read", 1000),
    ("server away for long", 157),
    ("server killed", 469),
    ("server loses its power", 455),
    ("server slow", 423),
    ("server: a Weir", 97),
    ("server: a Weir, exclusively", 150),
    ("server: a slow Weir", 263),
    ("server: another", 252),
    ("server: another, trusted", 243),
    ("volume refuses", 154),
    ("work done", 980),
];

/// What comes of faults of the disk alone, which seeds with a band cache have none of.
const OF_DISK_FAULTS: &[&str] = &["disk: a byte rotted", "heard: a failure"];

/// What a run did not meet often enough, a line each.
pub(crate) fn missing(report: &Report, all_are_cached: bool) -> Vec<String> {
    let mut missing = Vec::new();
    let is_never = |event| all_are_cached && OF_DISK_FAULTS.contains(&event);
    for (nodes, required) in [(1, ONE_NODE), (2, TWO_NODES), (REMOTE, REMOTES)] {
        let seeds = report.seeds_of(nodes);
        for (event, per_mille) in required.iter().filter(|(event, _)| !is_never(*event)) {
            let expected = per_mille * seeds / 1000;
            let met = report.seeds_with(nodes, event);
            if expected >= EXPECTED_MIN && met < expected / SHARE {
                missing.push(format!(
                    "{event}: in {met} of {seeds} seeds with {}, {expected} are usual",
                    run::flag(nodes)
                ));
            }
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events;

    #[test]
    fn what_is_required_is_named_once() {
        for required in [ONE_NODE, TWO_NODES, REMOTES] {
            for (at, (event, share)) in required.iter().enumerate() {
                assert!(required[..at].iter().all(|(other, _)| other != event), "{event}");
                assert!((1..=1000).contains(share), "{event}");
            }
        }
        assert_eq!(events::pair("a", "b"), "pair: a x b");
    }
}
