//! Common parts of this crate's tests: a tenant without a network.

use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::LocalSet;
use unlade_guest_protocol::Layout;
use unlade_metrics::Meter;
use unlade_s3::{Head, Request};

use crate::copies::CopyService;
use crate::cut::{Services, ServicesConfig};
use crate::journal::Journal;
use crate::perform::StoreClient;
use crate::prefetch::Empty;
use crate::quota::{self, Quota};
use crate::scheduler::Turn;
use crate::store::{Body, Form, Incoming, Local, Outgoing, Transport, TransportError};
use crate::tenant::{Limits, Tenant};
use crate::writeback::WriteBack;

/// Runs a future on a thread of its own.
pub fn local<T>(work: impl AsyncFnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, work())
}

/// A store that accepts every write, or never responds.
pub struct Store {
    pub answers: bool,
}

impl Transport for Store {
    fn exchange(
        &self,
        _: Rc<Request>,
        body: Rc<Body>,
    ) -> Local<'_, Result<Incoming, TransportError>> {
        Box::pin(async move {
            if !self.answers {
                return pending().await;
            }
            let head = Head { status: 200, headers: vec![("etag".to_owned(), tag(&body))] };
            Ok(Incoming { head, body: Box::new(Empty) })
        })
    }

    fn upload<'a>(
        &'a self,
        _: &'a Request,
        _: &'a mut dyn Outgoing,
    ) -> Local<'a, Result<Incoming, TransportError>> {
        Box::pin(pending())
    }

    fn presign(&self, _: &Request, _: Duration) -> Result<String, TransportError> {
        Err(TransportError::Sign("there is no key".to_owned()))
    }

    fn presign_post(&self, _: Form<'_>) -> Result<(String, Vec<(String, String)>), TransportError> {
        Err(TransportError::Sign("there is no key".to_owned()))
    }
}

/// The entity tag of a body.
pub fn tag(body: &Body) -> String {
    format!("\"{}\"", body.md5())
}

/// A tenant of a store, with a limit of pending writes.
pub fn tenant(
    store: Store,
    journal: Option<Journal>,
    writes_max: usize,
    turn: Rc<Turn>,
) -> Rc<Tenant> {
    let layout = Layout { ring_entries: 64, meta_bytes: 64 * 1024, guest_slots: 4, host_slots: 4 };
    let limits = Limits {
        layout,
        window_slots: 2,
        calls_max: 16,
        body_bytes_max: 1 << 20,
        staged_bytes_max: 1 << 20,
        stream_bytes_min: 1 << 20,
        stream_bodies: false,
        prefetch_bytes_max: 1 << 20,
        call_timeout: Duration::from_secs(60),
        copies: CopyService::default(),
    };
    let quota = Quota::new(quota::Limits { calls_max: 100, held_bytes_max: 1 << 20 });
    let pending =
        unlade_s3::pending::Limits { dirty_bytes_max: 1 << 20, writes_max, in_flight_max: 4 };
    let store_client = StoreClient::new(Box::new(store), Arc::new(Meter::new()), 1);
    let writeback = WriteBack::new(pending, journal, store_client);
    let services = Services::new(&ServicesConfig::default()).unwrap();
    Tenant::new(limits, quota, writeback, services, turn, 1)
}
