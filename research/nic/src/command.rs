//! What the host tells the device about a flow. Commands travel in the send ring, between the
//! packets that they belong between: each takes effect for the packets behind it.

use unlade_net::{FlowKey, SeqNumber};
use unlade_nic_engine::Nvme;
use unlade_nic_engine::placement::Registration;
use unlade_nic_engine::resync::Response;

use crate::flow::{FlowId, Protocol};
use crate::segment::Template;

/// One command; the first one of a flow is [`Command::Open`].
pub enum Command {
    /// There is a flow now, without a context.
    Open {
        /// Its name in frames that come in: the peer is the client.
        name: FlowKey,
        /// What precedes its TCP headers.
        template: Template,
    },
    /// The flow is gone, with its contexts.
    Close,
    /// Packets that come are worked on from `start` on (`l5o_create`).
    CreateRx {
        /// The protocol, and its static state.
        protocol: Protocol,
        /// Where a message starts.
        start: SeqNumber,
        /// How many messages are before it under the same key.
        number: u64,
    },
    /// They are worked on with another key from `start` on.
    RestartRx {
        /// The protocol, and its static state.
        protocol: Protocol,
        /// Where the first message under the key starts.
        start: SeqNumber,
        /// Its number under the key.
        number: u64,
        /// How software calls the key.
        key: u16,
    },
    /// They go up as they come (`l5o_destroy`).
    DestroyRx,
    /// What is sent under `key` is sealed, from `start` on (`l5o_create`).
    CreateTx {
        /// The protocol, and its static state.
        protocol: Protocol,
        /// Where a message starts.
        start: SeqNumber,
        /// How many messages are before it under the same key.
        number: u64,
        /// How software calls the key.
        key: u16,
    },
    /// Nothing is sent under the key any more (`l5o_destroy`).
    DestroyTx {
        /// How software calls the key.
        key: u16,
    },
    /// From the next PDUs on, in both directions, these digests and limits are agreed on.
    AgreePdus(Nvme),
    /// Software's answer (`l5o_resync_rx_resp`).
    Respond(Response),
    /// The same to a question of the machine above TLS.
    RespondPdu(Response),
    /// Data for the tag goes to the buffer (`l5o_add_rr_state`).
    Register {
        /// The tag, and which registration of it.
        registration: Registration,
        /// The buffer, which is the device's until it is withdrawn.
        buffer: Box<[u8]>,
    },
    /// The buffer is to be given back (`l5o_del_rr_state`).
    Withdraw(Registration),
}

/// A command, and whose it is.
pub struct Addressed {
    /// The flow.
    pub flow: FlowId,
    /// What is to be done.
    pub command: Command,
}
