//! Commands from the host to the device about a flow. Commands are queued in the send ring
//! between packets; each takes effect for the packets behind it.

use unlade_net::{FlowKey, SeqNumber};
use unlade_nic_engine::Nvme;
use unlade_nic_engine::placement::Registration;
use unlade_nic_engine::resync::Response;

use crate::flow::{FlowId, Protocol};
use crate::template::Template;

/// One command; the first one of a flow is [`Command::Open`].
pub enum Command {
    /// Adds a flow, without a context.
    Open {
        /// Its name in received frames: the peer is the client.
        name: FlowKey,
        /// The headers before its TCP headers.
        template: Template,
    },
    /// Removes the flow, with its contexts.
    Close,
    /// Processes received packets from `start` on (`l5o_create`).
    CreateRx {
        /// The protocol, and its static state.
        protocol: Protocol,
        /// Start of a message.
        start: SeqNumber,
        /// Number of messages before it under the same key.
        number: u64,
    },
    /// Processes them with another key from `start` on.
    RestartRx {
        /// The protocol, and its static state.
        protocol: Protocol,
        /// Start of the first message under the key.
        start: SeqNumber,
        /// Its number under the key.
        number: u64,
        /// Software's number of the key.
        key: u16,
    },
    /// Delivers them as they come (`l5o_destroy`).
    DestroyRx,
    /// Seals data that is sent under `key`, from `start` on (`l5o_create`).
    CreateTx {
        /// The protocol, and its static state.
        protocol: Protocol,
        /// Start of a message.
        start: SeqNumber,
        /// Number of messages before it under the same key.
        number: u64,
        /// Software's number of the key.
        key: u16,
    },
    /// Ends sending under the key (`l5o_destroy`).
    DestroyTx {
        /// Software's number of the key.
        key: u16,
    },
    /// Applies digests and limits from the next PDUs on, in both directions.
    AgreePdus(Nvme),
    /// Software's answer (`l5o_resync_rx_resp`).
    Respond(Response),
    /// Software's answer to the machine above TLS.
    RespondPdu(Response),
    /// Places data for the tag into the buffer (`l5o_add_rr_state`).
    Register {
        /// The tag with its generation.
        registration: Registration,
        /// The buffer, owned by the device until it is withdrawn.
        buffer: Box<[u8]>,
    },
    /// Returns the buffer (`l5o_del_rr_state`).
    Withdraw(Registration),
}

/// A command with its flow.
pub struct Addressed {
    /// The flow.
    pub flow: FlowId,
    /// The command.
    pub command: Command,
}
