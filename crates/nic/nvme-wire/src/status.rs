//! Completion status (NVMe Base §3.3.3.2.1, figures 94 to 101).

use std::fmt;

/// The status field of a completion, 15 bits: code, type, retry delay, more, do-not-retry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

const DO_NOT_RETRY: u16 = 1 << 14;

macro_rules! statuses {
    ($($(#[$meta:meta])* $name:ident = $kind:literal, $code:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$meta])* pub const $name: Status = Status($kind << 8 | $code);)*

            fn text(self) -> Option<&'static str> {
                match (self.kind(), self.code()) {
                    $(($kind, $code) => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// Success.
    SUCCESS = 0, 0x00, "success";
    /// The opcode is not supported.
    INVALID_OPCODE = 0, 0x01, "invalid opcode";
    /// A field of the command is invalid.
    INVALID_FIELD = 0, 0x02, "invalid field in the command";
    /// A command with this identifier is outstanding.
    ID_CONFLICT = 0, 0x03, "command identifier in use";
    /// Data could not be transferred.
    DATA_TRANSFER = 0, 0x04, "data transfer error";
    /// An error of the controller.
    INTERNAL = 0, 0x06, "internal error";
    /// The command was aborted.
    ABORTED = 0, 0x07, "aborted on request";
    /// The queue was deleted.
    QUEUE_DELETED = 0, 0x08, "aborted because its queue was deleted";
    /// The namespace does not exist.
    INVALID_NAMESPACE = 0, 0x0b, "invalid namespace or format";
    /// The command is out of sequence, for example before the controller is enabled.
    COMMAND_SEQUENCE = 0, 0x0c, "command sequence error";
    /// The data's descriptor is invalid.
    SGL_DESCRIPTOR = 0, 0x0d, "invalid SGL segment descriptor";
    /// The data length does not match the command.
    SGL_DATA_LENGTH = 0, 0x0f, "data SGL length invalid";
    /// The descriptor type is not supported.
    SGL_TYPE = 0, 0x11, "SGL descriptor type invalid";
    /// The offset in the capsule is invalid.
    SGL_OFFSET = 0, 0x16, "SGL offset invalid";
    /// The keep alive timer of the host has expired.
    KEEP_ALIVE_EXPIRED = 0, 0x19, "keep alive timeout expired";
    /// The namespace is read-only.
    WRITE_PROTECTED = 0, 0x20, "namespace is write protected";
    /// The transport failed; the command can be retried.
    TRANSIENT_TRANSPORT = 0, 0x22, "transient transport error";
    /// Blocks beyond the end of the namespace.
    LBA_OUT_OF_RANGE = 0, 0x80, "logical block address out of range";
    /// The storage behind the namespace is full.
    CAPACITY = 0, 0x81, "capacity exceeded";
    /// The namespace is not available.
    NOT_READY = 0, 0x82, "namespace not ready";
    /// Too many outstanding asynchronous event requests.
    ASYNC_EVENT_LIMIT = 1, 0x05, "asynchronous event request limit exceeded";
    /// The log page does not exist.
    INVALID_LOG_PAGE = 1, 0x09, "invalid log page";
    /// The feature cannot be saved.
    FEATURE_NOT_SAVEABLE = 1, 0x0d, "feature identifier not saveable";
    /// The feature cannot be changed.
    FEATURE_NOT_CHANGEABLE = 1, 0x0e, "feature not changeable";
    /// Connect: the format of the record is not supported.
    CONNECT_FORMAT = 1, 0x80, "incompatible format";
    /// Connect: the controller is in use, or has no free queue.
    CONNECT_BUSY = 1, 0x81, "controller busy";
    /// Connect: a parameter is invalid.
    CONNECT_INVALID = 1, 0x82, "connect invalid parameters";
    /// Connect: the host must repeat the discovery.
    CONNECT_RESTART_DISCOVERY = 1, 0x83, "connect restart discovery";
    /// Connect: the host is not allowed.
    CONNECT_INVALID_HOST = 1, 0x84, "connect invalid host";
    /// The log page changed during the read.
    DISCOVERY_RESTART = 1, 0x90, "discover restart";
    /// Authentication is required.
    AUTHENTICATION_REQUIRED = 1, 0x91, "authentication required";
    /// Writing failed.
    WRITE_FAULT = 2, 0x80, "write fault";
    /// Reading failed.
    READ_ERROR = 2, 0x81, "unrecovered read error";
    /// The compared data differs.
    COMPARE_FAILURE = 2, 0x85, "compare failure";
}

impl Status {
    /// Creates a status from a 15-bit field; higher bits are ignored.
    pub const fn from_bits(bits: u16) -> Status {
        Status(bits & 0x7fff)
    }

    /// The 15-bit field.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// SC.
    pub const fn code(self) -> u8 {
        self.0 as u8
    }

    /// SCT: 0 generic, 1 command specific, 2 media, 3 path, 7 vendor.
    pub const fn kind(self) -> u8 {
        (self.0 >> 8 & 7) as u8
    }

    /// Returns true if the same command would fail again (DNR).
    pub const fn is_final(self) -> bool {
        self.0 & DO_NOT_RETRY != 0
    }

    /// Sets DNR.
    pub const fn and_final(self) -> Status {
        Status(self.0 | DO_NOT_RETRY)
    }

    /// Returns true if the command succeeded.
    pub const fn is_success(self) -> bool {
        self.code() == 0 && self.kind() == 0
    }

    /// Returns true if type and code are equal; retry and more bits are ignored.
    pub const fn is(self, other: Status) -> bool {
        self.0 & 0x7ff == other.0 & 0x7ff
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text)?,
            None => write!(f, "status type {} code {:#04x}", self.kind(), self.code())?,
        }
        f.write_str(if self.is_final() { " (not to be tried again)" } else { "" })
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({:#06x}: {self})", self.0)
    }
}
