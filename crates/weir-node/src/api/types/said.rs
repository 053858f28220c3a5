//! How some of it is said to people.

use std::fmt;

use super::{AtRisk, Limits, LogStatus, VolumeLimit};
use crate::size::human;

/// What is not in the store.
impl fmt::Display for AtRisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bytes_are_least && self.is_nothing() {
            return f.write_str("unknown, up to all that the journal of a volume that failed or was not closed holds");
        }
        f.write_str(&self.what())?;
        if let Some(age) = self.oldest_age_ms {
            let more = if self.age_is_least { " or more (from before this start)" } else { "" };
            write!(f, ", the oldest for {}.{} s{more}", age / 1000, age % 1000 / 100)?;
        }
        match self.bytes_are_least {
            true => f.write_str(
                ", or up to all that the journal of a volume that failed or was not closed holds",
            ),
            false => Ok(()),
        }
    }
}

impl fmt::Display for VolumeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = || "none".to_owned();
        let iops = self.iops.map_or_else(none, |count| format!("{count}/s"));
        let bytes = self.bytes_per_second.map_or_else(none, |bytes| format!("{}/s", human(bytes)));
        write!(f, "operations {iops}, bytes {bytes}, burst {} ms", self.burst_ms)?;
        match self.cache_share {
            Some(share) => write!(f, ", {share} % of the cache"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = || "none".to_owned();
        let bytes = self.upload_bytes_per_second.map(|bytes| format!("{}/s", human(bytes)));
        let requests = self.upload_requests_per_second.map(|count| format!("{count}/s"));
        let [bytes, requests] = [bytes, requests].map(|limit| limit.unwrap_or_else(none));
        let drain = if self.drain { "on" } else { "off" };
        write!(f, "upload bandwidth {bytes}, upload requests {requests}, drain {drain}")
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
    fn limits_are_said_in_words_and_numbers() {
        let limits = Limits { upload_bytes_per_second: Some(20 << 20), ..Limits::default() };
        let expected = "upload bandwidth 20.0 MiB/s, upload requests none, drain off";
        assert_eq!(limits.to_string(), expected);
        let json = serde_json::to_value(limits).unwrap();
        assert_eq!(json["drain"], serde_json::json!(false), "what is off is said as well");
        let limit = VolumeLimit { iops: Some(5), burst_ms: 100, ..VolumeLimit::default() };
        assert_eq!(limit.to_string(), "operations 5/s, bytes none, burst 100 ms");
        let limit = VolumeLimit { cache_share: Some(20), ..limit };
        assert!(limit.to_string().ends_with(", 20 % of the cache"), "{limit}");
    }

    #[test]
    fn what_would_be_lost_is_said_with_its_age() {
        let at_risk =
            |bytes, oldest_age_ms| AtRisk { bytes, blocks: 1, oldest_age_ms, ..AtRisk::default() };
        assert_eq!(AtRisk::default().to_string(), "nothing");
        let expected = "zeroes and discards, the oldest for 2.3 s";
        assert_eq!(at_risk(0, Some(2345)).to_string(), expected);
        assert_eq!(at_risk(4096, Some(2345)).to_string(), "4.0 KiB, the oldest for 2.3 s");
        let replayed = AtRisk { age_is_least: true, ..at_risk(4096, Some(2345)) };
        let expected = "4.0 KiB, the oldest for 2.3 s or more (from before this start)";
        assert_eq!(replayed.to_string(), expected);
        let failed = |at_risk| AtRisk { bytes_are_least: true, ..at_risk };
        let all = "up to all that the journal of a volume that failed or was not closed holds";
        assert_eq!(failed(AtRisk::default()).to_string(), format!("unknown, {all}"));
        let more = format!("4.0 KiB, the oldest for 2.3 s, or {all}");
        assert_eq!(failed(at_risk(4096, Some(2345))).to_string(), more);
        let sum: AtRisk = [failed(AtRisk::default()), at_risk(4096, None)].into_iter().sum();
        assert!(sum.bytes_are_least && sum.bytes == 4096);
    }
}
