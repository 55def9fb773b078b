//! The context of a submission: tenant, rights, epoch and invocation.

use std::cell::Cell;
use std::rc::Rc;

use unlade_guest_protocol::control::WriteMode;
use unlade_s3::policy::facts::Environment;
use unlade_s3::{Call, Policy};

use crate::rights::Rights;
use crate::session_epoch::{CallPermit, SessionEpoch};
use crate::tenant::Tenant;

/// See the [module](self).
#[derive(Clone)]
pub struct Caller {
    /// The tenant.
    pub tenant: Rc<Tenant>,
    /// The rights of the function.
    pub rights: Rc<Rights>,
    /// The epoch in whose memory the call was submitted.
    pub session_epoch: Rc<SessionEpoch>,
    /// The invocation that is running; empty if there is none.
    pub invocation: Rc<str>,
    /// True once the invocation is over.
    pub is_over: Rc<Cell<bool>>,
    /// How its writes are acknowledged.
    pub writes: WriteMode,
    /// Calls in flight of all epochs of the instance.
    pub calls: Rc<Cell<usize>>,
}

impl Caller {
    /// The policy that decides now.
    pub fn policy(&self) -> Rc<Policy> {
        self.rights.policy()
    }

    /// The circumstances of a call to the store now.
    pub fn environment(&self, call: &Call) -> Environment {
        self.tenant.store_client.transport.environment(call.region.as_deref())
    }

    /// Takes a permit of the instance's calls, if one is left.
    pub fn permit(&self) -> Option<CallPermit> {
        CallPermit::begin(&self.calls, self.tenant.limits.calls_max)
    }
}
