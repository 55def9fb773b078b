//! One operation at the store, with its attempts and waits.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use unlade_metrics::{Event, Meter};
use unlade_s3::failure::{HostCode, ServiceError};
use unlade_s3::operation::Output;
use unlade_s3::response::{Answer, understand};
use unlade_s3::retry::{Attempts, Failure, Quota};
use unlade_s3::{Head, Request};

use crate::store::checked::{self, Checked};
use crate::store::{Body, Incoming, Reader, Transport, TransportError, read_all};

/// Largest response that is not an object.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The client of a tenant's store: the transport, and the state that all operations share.
pub struct StoreClient {
    /// The transport to the store.
    pub transport: Box<dyn Transport>,
    /// The budget of retries.
    pub retries: RefCell<Quota>,
    /// The metrics.
    pub meter: Arc<Meter>,
    dice: Cell<u64>,
}

impl StoreClient {
    /// Creates a client without operations. `seed` seeds the random waits.
    pub fn new(transport: Box<dyn Transport>, meter: Arc<Meter>, seed: u64) -> Rc<StoreClient> {
        let (retries, dice) = (RefCell::default(), Cell::new(seed));
        Rc::new(StoreClient { transport, retries, meter, dice })
    }

    /// A random number (SplitMix64), which is sufficient for the jitter of waits.
    pub fn dice(&self) -> u32 {
        let state = self.dice.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.dice.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 32) as u32
    }
}

impl std::fmt::Debug for StoreClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreClient").finish_non_exhaustive()
    }
}

/// The result of an operation that succeeded.
pub struct Performed {
    /// The result that an SDK would return.
    pub result: Map<String, Value>,
    /// Status and header fields.
    pub head: Head,
    /// The object, if the response has one.
    pub object: Option<Box<dyn Reader>>,
}

/// The failure of an operation.
#[derive(Debug)]
pub enum Failed {
    /// The service refused the operation.
    Service {
        /// The error of the service.
        error: ServiceError,
        /// Status and header fields.
        head: Head,
    },
    /// The host failed.
    Host {
        /// The code.
        code: HostCode,
        /// A text for humans.
        message: String,
        /// True if another attempt need not wait.
        at_once: bool,
    },
}

impl Failed {
    /// Creates a failure of the host.
    pub fn host(code: HostCode, message: impl std::fmt::Display) -> Failed {
        Failed::Host { code, message: message.to_string(), at_once: false }
    }

    /// The code and the text of the failure.
    pub fn said(&self) -> (&str, &str) {
        match self {
            Failed::Service { error, .. } => (error.code(), error.message()),
            Failed::Host { code, message, .. } => (code.name(), message),
        }
    }

    fn as_failure(&self) -> Option<Failure<'_>> {
        match self {
            Failed::Service { error, .. } => {
                Some(Failure::Service { status: error.status, code: error.code() })
            }
            Failed::Host { code: HostCode::Timeout, .. } => Some(Failure::Timeout),
            Failed::Host { code: HostCode::Unavailable | HostCode::Broken, .. } => {
                Some(Failure::Connection)
            }
            Failed::Host { .. } => None,
        }
    }
}

impl From<TransportError> for Failed {
    fn from(error: TransportError) -> Failed {
        let code = match &error {
            TransportError::Timeout { .. } => HostCode::Timeout,
            TransportError::Connect { .. } => HostCode::Unavailable,
            TransportError::Broken { .. } => HostCode::Broken,
            TransportError::Sign(_) => HostCode::NoCredentials,
            TransportError::Withheld(_) => HostCode::Invalid,
        };
        let at_once = matches!(error, TransportError::Broken { was_kept: true, .. });
        Failed::Host { code, message: error.to_string(), at_once }
    }
}

/// Performs an operation, with retries where they may help. `attempts` continues the count of the
/// caller's own attempts.
///
/// # Errors
/// The failure of the last attempt.
pub async fn perform(
    store_client: &StoreClient,
    request: &Rc<Request>,
    body: &Rc<Body>,
    attempts: &mut Attempts,
) -> Result<Performed, Failed> {
    loop {
        match attempt(store_client, request, body).await {
            Ok(performed) => {
                attempts.succeeded(&mut store_client.retries.borrow_mut());
                return Ok(performed);
            }
            Err(failed) => wait(store_client, attempts, failed).await?,
        }
    }
}

/// Waits for the next attempt.
///
/// # Errors
/// No attempt is left.
pub async fn wait(
    store_client: &StoreClient,
    attempts: &mut Attempts,
    failed: Failed,
) -> Result<(), Failed> {
    let Some(wait) = next_wait(store_client, attempts, &failed) else { return Err(failed) };
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    Ok(())
}

/// The wait before the next attempt, if there is one.
pub fn next_wait(
    store_client: &StoreClient,
    attempts: &mut Attempts,
    failed: &Failed,
) -> Option<Duration> {
    let dice = store_client.dice();
    let failure = failed.as_failure()?;
    let wait = attempts.failed(failure, &mut store_client.retries.borrow_mut(), dice)?;
    store_client.meter.add(Event::HostioRetry);
    let at_once = matches!(failed, Failed::Host { at_once: true, .. });
    Some(if at_once { Duration::ZERO } else { wait })
}

async fn attempt(
    store_client: &StoreClient,
    request: &Rc<Request>,
    body: &Rc<Body>,
) -> Result<Performed, Failed> {
    store_client.meter.add(Event::HostioRequest);
    store_client.meter.add_n(Event::HostioBytesOut, body.bytes().len() as u64);
    let incoming = store_client.transport.exchange(request.clone(), body.clone()).await?;
    answered(store_client, request, incoming).await
}

/// Interprets a response.
///
/// # Errors
/// The service refused the operation, or the connection broke.
pub async fn answered(
    store_client: &StoreClient,
    request: &Request,
    incoming: Incoming,
) -> Result<Performed, Failed> {
    let Incoming { head, body: mut incoming } = incoming;
    let is_object = matches!(request.operation.output, Output::Object);
    if is_object && (200..300).contains(&head.status) {
        return match understand(request, &head, &[]) {
            Answer::Done(result) => {
                if let Some((algorithm, sum)) = checked::stated(&head) {
                    incoming = Checked::over(incoming, algorithm, sum);
                }
                Ok(Performed { result, head, object: Some(incoming) })
            }
            _ => Err(garbled()),
        };
    }
    let bytes = read_all(&mut *incoming, ANSWER_BYTES_MAX).await?;
    let bytes = bytes.ok_or_else(|| {
        Failed::host(HostCode::TooLarge, format!("an answer of over {ANSWER_BYTES_MAX} bytes"))
    })?;
    store_client.meter.add_n(Event::HostioBytesIn, bytes.len() as u64);
    match understand(request, &head, &bytes) {
        Answer::Done(result) => Ok(Performed { result, head, object: None }),
        Answer::Failed(error) => Err(Failed::Service { error, head }),
        Answer::Garbled => Err(garbled()),
    }
}

fn garbled() -> Failed {
    Failed::host(HostCode::Unavailable, "the store's answer cannot be understood")
}
