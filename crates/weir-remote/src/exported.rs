//! What is opened, and what the server offers of it.

use std::time::Duration;

use weir_nbd::{Agreement, Attached, ReplyStyle, Session, TransmissionFlags};
use weir_net::tls::Tls;

use crate::blocks::Blocks;
use crate::error::RemoteError;
use crate::url::RemoteUrl;

/// Longest payload to another Weir: what its reserve for requests of other nodes always has room for.
const FORWARDED_MAX: u64 = 1 << 20;

/// What is to be opened, and how.
#[derive(Clone, Debug)]
pub struct RemoteArgs {
    /// The export.
    pub url: RemoteUrl,
    /// The certificate to show, for an export under TLS.
    pub tls: Option<Tls>,
    /// Connections to use, where the server says that a flush on one covers all.
    pub connections: usize,
    /// How long a call waits for its answer, while there is no connection, too.
    pub deadline: Duration,
    /// Whether changes that were not answered when a connection was lost, or were not flushed, are sent again. Then
    /// clients see a pause only. It is safe where the server executes nothing any more of a connection that is gone;
    /// one that does could execute an old write after a newer one. Another Weir says that it does not, and changes are
    /// sent again in any case.
    pub resend: bool,
    /// Whether nobody else may write as long as there is a connection. Only another Weir can see to that. Where another
    /// client has got in between two connections the volume answers nothing any more.
    pub exclusive: bool,
}

/// What the server offers.
#[derive(Clone, Debug)]
pub(crate) struct Exported {
    pub(crate) size: u64,
    pub(crate) blocks: Blocks,
    pub(crate) session: Session,
}

impl Exported {
    /// What was agreed on.
    ///
    /// # Errors
    /// [`RemoteError::Unusable`].
    pub(crate) fn of(agreement: &Agreement) -> Result<Self, RemoteError> {
        let unusable = |reason: String| Err(RemoteError::Unusable { reason });
        let mut blocks = Blocks::of(agreement.block_sizes);
        if agreement.attached.is_some() {
            blocks.payload_max = blocks.payload_max.min(FORWARDED_MAX);
        }
        let size = agreement.size;
        if !size.is_multiple_of(blocks.minimum) {
            let block = blocks.minimum;
            return unusable(format!(
                "the size of the export, {size} bytes, is no multiple of the server's blocks of {block} bytes"
            ));
        }
        let session = agreement.session.clone();
        let found = Self { size, blocks, session };
        if !found.is_read_only() && !found.offers(TransmissionFlags::SEND_FLUSH) {
            return unusable(
                "the server offers no FLUSH for an export that can be written: nothing could be made durable. Turn it \
                 on there (`flush = true` in the configuration of nbd-server), or export it read-only"
                    .to_owned(),
            );
        }
        Ok(found)
    }

    pub(crate) fn offers(&self, flag: TransmissionFlags) -> bool {
        self.session.flags.contains(flag)
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.offers(TransmissionFlags::READ_ONLY)
    }

    /// Whether block status can be asked for.
    pub(crate) fn tells_allocation(&self) -> bool {
        self.session.style != ReplyStyle::Simple && !self.session.contexts.is_empty()
    }
}

/// What new connections found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) exported: Exported,
    pub(crate) attached: Option<Attached>,
    /// The name in the server's certificate.
    pub(crate) server: Option<String>,
}
