use std::io::Write;
use std::os::unix::net::UnixStream;

use unlade_guest_protocol::control::Message;

use super::*;
use crate::scheduler::{Turn, UNITS_TURN};
use crate::testing::{Store, local, tenant};

/// A turn that is not renewed ends within the submissions of one read.
#[test]
fn greetings_are_part_of_a_tenants_turn() {
    local(async || {
        let tenant = tenant(Store { answers: false }, None, 0, Turn::bounded());
        let (mut guest, channel) = UnixStream::pair().unwrap();
        let mut bytes = Vec::new();
        for nonce in 0..100 {
            Frame::Hello { nonce }.encode(&mut bytes).unwrap();
        }
        guest.write_all(&bytes).unwrap();
        let (gateway, mut said) = Gateway::new();
        let session =
            Session::new(tenant, Rc::default(), gateway, 1, channel.into(), None).unwrap();
        let (_orders, obeyed) = mpsc::unbounded_channel();
        tokio::task::spawn_local(session.run(obeyed));
        for _ in 0..UNITS_TURN / i64::from(HELLO_UNITS) {
            let message = said.recv().await.unwrap();
            let (message, _) = Message::decode(&message).unwrap().unwrap();
            assert!(matches!(message.said, ControlHead::Ready { .. }), "{message:?}");
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(said.try_recv().is_err());
    });
}
