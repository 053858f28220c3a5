//! What would be lost, of one volume and of several.

use std::iter::Sum;

use weir_device::mutant;
use weir_log::VolumeStatus;

use super::AtRisk;
use crate::size::human;

impl AtRisk {
    /// Whether every acknowledged write is in the store. Zeroes and discards have no bytes.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.bytes == 0 && (self.blocks == 0 || mutant("zeroes_are_nothing_at_risk"))
    }

    /// What it is, without its age.
    #[must_use]
    pub fn what(&self) -> String {
        match self.bytes {
            _ if self.is_nothing() => "nothing".to_owned(),
            0 => "zeroes and discards".to_owned(),
            bytes => human(bytes),
        }
    }
}

impl From<VolumeStatus> for AtRisk {
    fn from(log: VolumeStatus) -> Self {
        Self::from(&log)
    }
}

impl From<&VolumeStatus> for AtRisk {
    fn from(log: &VolumeStatus) -> Self {
        Self {
            bytes: log.unsent_bytes,
            blocks: log.acked_write.saturating_sub(log.committed_write),
            oldest_age_ms: log.unsent_age_ms,
            age_is_least: log.unsent_age_is_least,
            bytes_are_least: log.failure.is_some(),
        }
    }
}

impl Sum for AtRisk {
    fn sum<I: Iterator<Item = Self>>(risks: I) -> Self {
        risks.fold(Self::default(), |sum, risk| Self {
            bytes: sum.bytes + risk.bytes,
            blocks: sum.blocks + risk.blocks,
            oldest_age_ms: sum.oldest_age_ms.max(risk.oldest_age_ms),
            age_is_least: sum.age_is_least || risk.age_is_least,
            bytes_are_least: sum.bytes_are_least || risk.bytes_are_least,
        })
    }
}
