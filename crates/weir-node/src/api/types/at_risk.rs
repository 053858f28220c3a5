//! What would be lost, of one volume and of several.

use std::iter::Sum;

use weir_log::VolumeStatus;

use super::AtRisk;

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
        })
    }
}
