//! How some of it is said to people.

use std::fmt;

use super::{AtRisk, LogStatus};
use crate::size::human;

/// What is not in the store.
impl fmt::Display for AtRisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest_age_ms {
            None if self.bytes == 0 => f.write_str("nothing"),
            None => f.write_str(&human(self.bytes)),
            Some(age) => {
                let (seconds, tenths) = (age / 1000, age % 1000 / 100);
                write!(f, "{}, the oldest for {seconds}.{tenths} s", human(self.bytes))?;
                match self.age_is_least {
                    true => f.write_str(" or more (from before this start)"),
                    false => Ok(()),
                }
            }
        }
    }
}

impl LogStatus {
    /// Live share of the objects; nothing where there are none.
    #[must_use]
    pub fn live_share(&self) -> String {
        match self.live_bytes.saturating_mul(100).checked_div(self.used_bytes) {
            Some(percent) => format!("{percent} %"),
            None => String::new(),
        }
    }

    /// How many bytes were written to objects per byte that clients wrote to them.
    #[must_use]
    pub fn amplification(&self) -> String {
        let written = self.data_bytes.saturating_add(self.collected_bytes);
        match written.saturating_mul(100).checked_div(self.data_bytes) {
            Some(times) => format!("{}.{:02} x", times / 100, times % 100),
            None => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_says_what_lives_and_what_collecting_costs() {
        let log = |values: serde_json::Value| {
            let mut all = serde_json::json!({
                "epoch": 1, "committed_sequence": 1, "checkpoint_as_of": null, "journal_used_bytes": 0,
                "journal_capacity_bytes": 0, "journal_resident_bytes": 0, "puts_in_flight": 0,
                "objects_written": 0, "checkpoints_published": 0, "map_entries": 0, "map_bytes": 0,
                "live_bytes": 0, "used_bytes": 0, "object_bytes": 0, "data_bytes": 0,
                "collected_objects": 0, "collected_bytes": 0, "deleted_objects": 0, "reclaimed_bytes": 0,
                "pending_deletions": 0, "lease_held": true, "takeover": "manual",
            });
            for (key, value) in values.as_object().unwrap() {
                all[key] = value.clone();
            }
            serde_json::from_value::<LogStatus>(all).unwrap()
        };
        let empty = log(serde_json::json!({}));
        assert_eq!((empty.live_share(), empty.amplification()), (String::new(), String::new()));
        let used = log(serde_json::json!({
            "live_bytes": 720, "used_bytes": 1000, "data_bytes": 1000, "collected_bytes": 805,
        }));
        assert_eq!(used.live_share(), "72 %");
        assert_eq!(used.amplification(), "1.80 x");
    }

    #[test]
    fn what_would_be_lost_is_said_with_its_age() {
        let at_risk =
            |bytes, oldest_age_ms| AtRisk { bytes, blocks: 1, oldest_age_ms, age_is_least: false };
        assert_eq!(at_risk(0, None).to_string(), "nothing");
        assert_eq!(at_risk(4096, Some(2345)).to_string(), "4.0 KiB, the oldest for 2.3 s");
    }
}
        let replayed = AtRisk { age_is_least: true, ..at_risk(4096, Some(2345)) };
        let expected = "4.0 KiB, the oldest for 2.3 s or more (from before this start)";
        assert_eq!(replayed.to_string(), expected);
