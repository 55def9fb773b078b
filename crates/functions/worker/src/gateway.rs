//! Messages to a gateway.

use std::rc::Rc;

use tokio::sync::mpsc;
use unlade_bytes::DecodeError;
use unlade_guest_protocol::control::{ControlHead, Message};

use crate::tenant::Tenant;

/// The sending half of a gateway's connection.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// Encoded messages; one that is too long is refused before it is queued.
    messages: mpsc::UnboundedSender<Vec<u8>>,
}

impl Gateway {
    /// Creates a sender to a gateway, and the queue of its messages. The queue needs no limit of
    /// its own: there are few messages for each instance, and instances are limited.
    pub fn new() -> (Gateway, mpsc::UnboundedReceiver<Vec<u8>>) {
        let (messages, said) = mpsc::unbounded_channel();
        (Gateway { messages }, said)
    }

    /// Sends a message; drops it if the gateway has disconnected.
    pub fn say(&self, said: ControlHead) {
        if let Err(error) = self.say_with(said, Vec::new()) {
            tracing::error!(%error, "control: a message was not said");
        }
    }

    /// Sends a message with a payload.
    ///
    /// # Errors
    /// The payload exceeds the size of a message; no message was sent.
    pub fn say_with(&self, said: ControlHead, bytes: Vec<u8>) -> Result<(), DecodeError> {
        let mut encoded = Vec::new();
        Message { said, bytes }.encode(&mut encoded)?;
        let _ = self.messages.send(encoded);
        Ok(())
    }

    /// Reports the result of an invocation's writes once all of them have ended.
    pub fn settle(&self, tenant: &Rc<Tenant>, invocation: String) {
        let (gateway, tenant) = (self.clone(), tenant.clone());
        tokio::task::spawn_local(async move {
            let failed = tenant.writeback.settle(&invocation).await;
            gateway.say(ControlHead::Settled { invocation, failed });
        });
    }
}
