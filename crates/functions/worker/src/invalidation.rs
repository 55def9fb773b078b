//! The invalidation of prefetched objects and facts of buckets that a call changes.

use unlade_s3::Request;
use unlade_s3::operation::Effect;

use crate::tenant::Tenant;

/// Guard of a call in progress. It drops prefetched copies of the objects that the call writes,
/// and cached facts of a bucket that it changes, when the call begins and again when it ends or is
/// cancelled.
#[must_use]
pub struct CacheInvalidation<'a> {
    tenant: &'a Tenant,
    request: &'a Request,
}

impl CacheInvalidation<'_> {
    /// Begins a call: drops what it makes stale now, and again when it ends, because others may
    /// read meanwhile.
    pub fn begin<'a>(tenant: &'a Tenant, request: &'a Request) -> CacheInvalidation<'a> {
        let invalidation = CacheInvalidation { tenant, request };
        invalidation.forget();
        invalidation
    }

    fn forget(&self) {
        let CacheInvalidation { tenant, request } = self;
        let Some(bucket) = request.bucket.as_deref() else { return };
        match request.operation.effect {
            Effect::ChangeObject => {
                tenant.prefetches.forget(bucket, request.key.as_deref());
            }
            Effect::ChangeBucket => {
                tenant.prefetches.forget(bucket, None);
                tenant.writeback.unlearn(bucket);
            }
            Effect::ReadObject | Effect::ReadBucket => {}
        }
    }
}

impl Drop for CacheInvalidation<'_> {
    fn drop(&mut self) {
        self.forget();
    }
}
