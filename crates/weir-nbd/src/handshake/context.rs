//! Metadata contexts: their names, their numbers, and which of them a query means.
//!
//! `base:allocation` is offered by every export, `qemu:dirty-bitmap:NAME` for every earlier state that the export can
//! be compared with. The second namespace is QEMU's (`docs/interop/nbd.txt` there); backup tools know it.

use super::export::ExportInfo;
use crate::limits::STRING_BYTES_MAX;

/// The context that tells data from holes.
pub const ALLOCATION_CONTEXT: &str = "base:allocation";

const BASE: &str = "base:";
const QEMU: &str = "qemu:";
const DIRTY_BITMAP: &str = "qemu:dirty-bitmap:";

/// The number of `base:allocation` in every session; those of the earlier states follow.
const ALLOCATION_ID: u32 = 1;

/// A metadata context that was agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenContext {
    /// Its number in block-status replies.
    pub id: u32,
    /// Its name.
    pub name: String,
}

/// What a metadata context tells of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context<'a> {
    /// Data, zeroes or holes: [`crate::AllocationFlags`].
    Allocation,
    /// What changed since the earlier state of this name: [`crate::DirtyFlags`].
    ChangedSince(&'a str),
}

impl<'a> Context<'a> {
    /// The context of that name, whether or not any export has it.
    #[must_use]
    pub fn of(name: &'a str) -> Option<Self> {
        if name == ALLOCATION_CONTEXT {
            return Some(Self::Allocation);
        }
        name.strip_prefix(DIRTY_BITMAP).map(Self::ChangedSince)
    }

    fn name(self) -> String {
        match self {
            Self::Allocation => ALLOCATION_CONTEXT.to_owned(),
            Self::ChangedSince(state) => format!("{DIRTY_BITMAP}{state}"),
        }
    }

    /// Whether a query names this context, or, in a list, all of its kind.
    fn is_meant(self, query: &str, listing: bool) -> bool {
        let kind = match self {
            Self::Allocation => query == BASE,
            Self::ChangedSince(_) => query == QEMU || query == DIRTY_BITMAP,
        };
        Context::of(query) == Some(self) || (listing && kind)
    }
}

impl ExportInfo {
    /// The contexts on offer that `queries` mean, each once. In a list no query means all.
    pub(super) fn contexts(&self, queries: &[&str], listing: bool) -> Vec<ChosenContext> {
        let earlier = self.earlier.iter().map(|state| Context::ChangedSince(state));
        let all = std::iter::once(Context::Allocation).chain(earlier);
        let is_wanted = |context: Context<'_>| {
            (listing && queries.is_empty()) || queries.iter().any(|q| context.is_meant(q, listing))
        };
        (ALLOCATION_ID..)
            .zip(all)
            .filter(|(_, context)| is_wanted(*context))
            .map(|(id, context)| ChosenContext { id, name: context.name() })
            // One whose name is longer than the protocol allows cannot be spoken of.
            .filter(|context| context.name.len() <= STRING_BYTES_MAX)
            .collect()
    }
}
