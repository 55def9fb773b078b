//! Opcodes (NVMe Base figure 138, NVM figure 16, NVMe Base §6 for fabrics).

macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$vmeta])* $variant = $value,)* }

        impl $name {
            /// All supported opcodes.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The opcode with this number, if it is supported.
            pub fn from_number(number: u8) -> Option<$name> {
                match number {
                    $($value => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

/// The opcode of fabrics commands, in admin and I/O queues.
pub const FABRICS: u8 = 0x7f;

numbered! {
    /// Commands of the admin queue.
    AdminOpcode {
        /// Get Log Page.
        GetLogPage = 0x02,
        /// Identify.
        Identify = 0x06,
        /// Abort.
        Abort = 0x08,
        /// Set Features.
        SetFeatures = 0x09,
        /// Get Features.
        GetFeatures = 0x0a,
        /// Asynchronous Event Request.
        AsyncEvent = 0x0c,
        /// Keep Alive.
        KeepAlive = 0x18,
    }
}

numbered! {
    /// Commands of an I/O queue.
    IoOpcode {
        /// Flush.
        Flush = 0x00,
        /// Write.
        Write = 0x01,
        /// Read.
        Read = 0x02,
        /// Compare.
        Compare = 0x05,
        /// Write Zeroes.
        WriteZeroes = 0x08,
        /// Dataset Management.
        DatasetManagement = 0x09,
    }
}

numbered! {
    /// Fabrics commands (FCTYPE).
    FabricsType {
        /// Property Set.
        PropertySet = 0x00,
        /// Connect.
        Connect = 0x01,
        /// Property Get.
        PropertyGet = 0x04,
        /// Disconnect.
        Disconnect = 0x08,
    }
}

/// Direction of a command's data, from its opcode's two lowest bits (NVMe Base §3.3.3.1); for
/// fabrics commands from the type's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    None,
    /// From the host.
    ToController,
    /// To the host.
    ToHost,
}

impl Direction {
    /// The direction for an opcode or a fabrics type. No supported command is bidirectional (3).
    pub fn of(opcode: u8) -> Direction {
        match opcode & 3 {
            1 => Direction::ToController,
            2 => Direction::ToHost,
            _ => Direction::None,
        }
    }
}
