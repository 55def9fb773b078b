use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::task::Poll;

use unlade_s3::journal::{MAGIC, replay};

use super::*;
use crate::tenant::Tenant;
use crate::testing::{Store, local, tag, tenant};

/// A tenant with a journal, for which the class of the bucket is known.
fn early(store: Store, path: &Path, writes_max: usize) -> Rc<Tenant> {
    let (journal, none) = Journal::open(path).unwrap();
    assert!(none.is_empty());
    let tenant = tenant(store, Some(journal), writes_max, Rc::default());
    let (request, body) = (request(&parameters("first")), Body::from(b"first".to_vec()));
    let result = Map::from_iter([("ETag".to_owned(), tag(&body).into())]);
    let head = Head { status: 200, headers: Vec::new() };
    tenant.writeback.learn(&request, &body, &result, &head);
    tenant
}

fn parameters(key: &str) -> Map<String, Value> {
    let members = [("Bucket", "box"), ("Key", key), ("ContentType", "text/plain")];
    members.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
}

fn request(parameters: &Map<String, Value>) -> Rc<Request> {
    Rc::new(Request::new(find("PutObject").unwrap(), parameters).unwrap())
}

/// Writes an object whose content is its key.
async fn put(tenant: &Rc<Tenant>, key: &str, held: &mut Option<HeldBytes>) -> bool {
    let parameters = parameters(key);
    let (request, body) = (request(&parameters), Rc::new(Body::from(key.as_bytes().to_vec())));
    let candidate = Candidate {
        request: &request,
        parameters: &parameters,
        body: &body,
        invocation: "i",
        mode: WriteMode::EarlyReply,
    };
    tenant.writeback.acknowledge(candidate, held).await.is_some()
}

#[test]
fn a_call_that_is_cancelled_while_the_journal_is_written_leaves_it_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    local(async || {
        let tenant = early(Store { answers: false }, &path, 10);
        {
            let mut held = None;
            let mut cancelled = pin!(put(&tenant, "one", &mut held));
            poll_fn(|context| {
                assert!(cancelled.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        assert!(put(&tenant, "two", &mut None).await);
        let found = replay(&std::fs::read(&path).unwrap()).unfinished;
        let found: Vec<_> = found.iter().map(|begun| (begun.id, begun.body.as_slice())).collect();
        assert_eq!(found, [(1, &b"one"[..]), (2, &b"two"[..])]);
        // The write may have been executed, so it is not dropped.
        assert_eq!(tenant.writeback.pending.borrow().len(), 2);
    });
}

#[test]
fn a_write_is_pending_until_the_journal_has_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    local(async || {
        let tenant = early(Store { answers: true }, &path, 10);
        for _ in 0..100 {
            assert!(put(&tenant, "one", &mut None).await);
            while !tenant.writeback.pending.borrow().is_empty() {
                tokio::task::yield_now().await;
            }
            assert_eq!(std::fs::read(&path).unwrap(), MAGIC);
        }
    });
}

#[test]
fn a_write_without_room_gives_back_what_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    local(async || {
        let tenant = early(Store { answers: false }, &path, 0);
        let mut held = tenant.quota.hold(10);
        assert!(!put(&tenant, "one", &mut held).await);
        assert!(held.is_some());
        assert_eq!(std::fs::read(&path).unwrap(), MAGIC);
    });
}
