//! The numbers of the protocol, by name. Nothing else in the crate writes one down.

/// First magic of the server's greeting, `NBDMAGIC`.
pub(crate) const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second magic of the greeting, and the magic of every option, `IHAVEOPT`.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Magic of every option reply.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Magic of a compact request.
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic of an extended request.
pub(crate) const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Magic of a simple reply.
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic of a structured reply chunk.
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Magic of an extended reply chunk.
pub(crate) const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// A set of flags in one integer: known bits have names, unknown ones are kept.
macro_rules! flags {
    (
        $(#[$doc:meta])*
        $name:ident($int:ty) { $($(#[$flag_doc:meta])* $flag:ident = $bit:literal;)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$flag_doc])* pub const $flag: Self = Self(1 << $bit);)*

            /// Whether every bit of `other` is set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The bits of both.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The bits that `other` does not have.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Whether no bit is set.
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }
    };
}

flags! {
    /// Flags of the server's greeting.
    HandshakeFlags(u16) {
        /// The server answers every option.
        FIXED_NEWSTYLE = 0;
        /// The server can leave out the 124 zeroes after `EXPORT_NAME`.
        NO_ZEROES = 1;
    }
}

flags! {
    /// Flags that the client answers the greeting with.
    ClientFlags(u32) {
        /// The client understands option replies.
        FIXED_NEWSTYLE = 0;
        /// The client does not want the 124 zeroes.
        NO_ZEROES = 1;
    }
}

flags! {
    /// What an export offers during transmission.
    TransmissionFlags(u16) {
        /// Always set.
        HAS_FLAGS = 0;
        /// Writes are refused.
        READ_ONLY = 1;
        /// `FLUSH` is offered.
        SEND_FLUSH = 2;
        /// The FUA flag is honoured.
        SEND_FUA = 3;
        /// The medium turns.
        ROTATIONAL = 4;
        /// `TRIM` is offered.
        SEND_TRIM = 5;
        /// `WRITE_ZEROES` is offered.
        SEND_WRITE_ZEROES = 6;
        /// The DF flag is honoured.
        SEND_DF = 7;
        /// A flush on one connection covers all.
        CAN_MULTI_CONN = 8;
        /// `CACHE` is offered.
        SEND_CACHE = 10;
        /// The FAST_ZERO flag is honoured.
        SEND_FAST_ZERO = 11;
        /// `BLOCK_STATUS` takes a payload.
        BLOCK_STATUS_PAYLOAD = 12;
    }
}

flags! {
    /// Flags of one request.
    CommandFlags(u16) {
        /// Answer only when the write is on stable storage.
        FUA = 0;
        /// Keep the zeroed range provisioned.
        NO_HOLE = 1;
        /// Answer a read with one chunk.
        DF = 2;
        /// Answer a block status with one extent.
        REQ_ONE = 3;
        /// Fail rather than zero slowly.
        FAST_ZERO = 4;
        /// Extended header only: the length is that of a payload that follows.
        PAYLOAD_LEN = 5;
    }
}

flags! {
    /// Flags of one reply chunk.
    ChunkFlags(u16) {
        /// The last chunk of its reply.
        DONE = 0;
    }
}

flags! {
    /// Status of an extent in the context `base:allocation`.
    AllocationFlags(u32) {
        /// Not allocated.
        HOLE = 0;
        /// Reads as zeroes.
        ZERO = 1;
    }
}

flags! {
    /// Status of an extent in a context `qemu:dirty-bitmap:NAME`.
    DirtyFlags(u32) {
        /// May have changed since the state of that name.
        DIRTY = 0;
    }
}

/// A number of the protocol whose known values have names; unknown ones are kept.
macro_rules! codes {
    (
        $(#[$doc:meta])*
        $name:ident($int:ty) { $($(#[$code_doc:meta])* $code:ident = $value:expr;)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$code_doc])* pub const $code: Self = Self($value);)*
        }
    };
}

codes! {
    /// Number of an option.
    OptionCode(u32) {
        /// Choose an export and start, without a way to say no.
        EXPORT_NAME = 1;
        /// Goodbye.
        ABORT = 2;
        /// List the exports.
        LIST = 3;
        /// Start TLS.
        STARTTLS = 5;
        /// Describe an export.
        INFO = 6;
        /// Choose an export and start.
        GO = 7;
        /// Use structured replies.
        STRUCTURED_REPLY = 8;
        /// List metadata contexts.
        LIST_META_CONTEXT = 9;
        /// Choose metadata contexts.
        SET_META_CONTEXT = 10;
        /// Use extended headers.
        EXTENDED_HEADERS = 11;
        /// Say which client's connection this is. Weir's own: `WEIR` in ASCII, far from what the protocol hands out.
        WEIR_ATTACH = 0x5745_4952;
    }
}

/// Bit that makes an option reply an error.
pub(crate) const OPTION_ERROR_BIT: u32 = 1 << 31;

codes! {
    /// Type of an option reply.
    OptionReplyCode(u32) {
        /// Done.
        ACK = 1;
        /// One export of a list.
        SERVER = 2;
        /// One fact about an export.
        INFO = 3;
        /// One metadata context.
        META_CONTEXT = 4;
        /// Which opening of the export answers. Weir's own.
        WEIR_ATTACHED = 0x5745_4952;
        /// The option is not known here.
        ERR_UNSUP = OPTION_ERROR_BIT | 1;
        /// The option is forbidden here.
        ERR_POLICY = OPTION_ERROR_BIT | 2;
        /// Answer to WEIR_ATTACH: another client has the export, or it is not what this one knows.
        ERR_WEIR_TAKEN = OPTION_ERROR_BIT | 0x57_4549;
        /// The option's data is wrong, or it comes at the wrong time.
        ERR_INVALID = OPTION_ERROR_BIT | 3;
        /// Not on this platform.
        ERR_PLATFORM = OPTION_ERROR_BIT | 4;
        /// TLS first.
        ERR_TLS_REQD = OPTION_ERROR_BIT | 5;
        /// No such export.
        ERR_UNKNOWN = OPTION_ERROR_BIT | 6;
        /// The server is going down.
        ERR_SHUTDOWN = OPTION_ERROR_BIT | 7;
        /// Ask for the block size first.
        ERR_BLOCK_SIZE_REQD = OPTION_ERROR_BIT | 8;
        /// Too long, or too many.
        ERR_TOO_BIG = OPTION_ERROR_BIT | 9;
        /// Extended headers are needed, or already agreed on.
        ERR_EXT_HEADER_REQD = OPTION_ERROR_BIT | 10;
    }
}

impl OptionReplyCode {
    /// Whether the reply says that the option failed.
    #[must_use]
    pub const fn is_error(self) -> bool {
        self.0 & OPTION_ERROR_BIT != 0
    }
}

codes! {
    /// Number of a fact about an export.
    InfoCode(u16) {
        /// Size and transmission flags.
        EXPORT = 0;
        /// Canonical name.
        NAME = 1;
        /// Description.
        DESCRIPTION = 2;
        /// Block sizes.
        BLOCK_SIZE = 3;
    }
}

codes! {
    /// Number of a command.
    CommandCode(u16) {
        /// Read.
        READ = 0;
        /// Write.
        WRITE = 1;
        /// Goodbye.
        DISC = 2;
        /// Flush.
        FLUSH = 3;
        /// Discard.
        TRIM = 4;
        /// Prefetch.
        CACHE = 5;
        /// Write zeroes.
        WRITE_ZEROES = 6;
        /// What do these ranges hold?
        BLOCK_STATUS = 7;
    }
}

/// Bit that makes a reply chunk an error.
pub(crate) const CHUNK_ERROR_BIT: u16 = 1 << 15;

codes! {
    /// Type of a reply chunk.
    ChunkCode(u16) {
        /// Nothing: the end of a reply.
        NONE = 0;
        /// Bytes of a read.
        OFFSET_DATA = 1;
        /// Zeroes of a read.
        OFFSET_HOLE = 2;
        /// Extents, 32 bits.
        BLOCK_STATUS = 5;
        /// Extents, 64 bits.
        BLOCK_STATUS_EXT = 6;
        /// An error.
        ERROR = CHUNK_ERROR_BIT | 1;
        /// An error at an offset.
        ERROR_OFFSET = CHUNK_ERROR_BIT | 2;
    }
}

/// An error as the protocol knows it. The values are its own, whatever the host calls them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorCode {
    /// `NBD_EPERM`: not permitted.
    NotPermitted,
    /// `NBD_EIO`: the device failed.
    Io,
    /// `NBD_ENOMEM`: out of memory.
    NoMemory,
    /// `NBD_EINVAL`: the request is wrong.
    Invalid,
    /// `NBD_ENOSPC`: no space, or a write past the end.
    NoSpace,
    /// `NBD_EOVERFLOW`: too long.
    Overflow,
    /// `NBD_ENOTSUP`: not offered (fast zeroes only).
    NotSupported,
    /// `NBD_ESHUTDOWN`: the server is going away.
    Shutdown,
}

impl ErrorCode {
    /// Every code.
    pub const ALL: [Self; 8] = [
        Self::NotPermitted,
        Self::Io,
        Self::NoMemory,
        Self::Invalid,
        Self::NoSpace,
        Self::Overflow,
        Self::NotSupported,
        Self::Shutdown,
    ];

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::NotPermitted => 1,
            Self::Io => 5,
            Self::NoMemory => 12,
            Self::Invalid => 22,
            Self::NoSpace => 28,
            Self::Overflow => 75,
            Self::NotSupported => 95,
            Self::Shutdown => 108,
        }
    }

    /// The code of a number other than zero. Numbers that the protocol does not know count as `EINVAL`.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        Self::ALL.into_iter().find(|code| code.number() == number).unwrap_or(Self::Invalid)
    }
}
