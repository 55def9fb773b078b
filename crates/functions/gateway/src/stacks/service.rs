//! The stacks of all tenants.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use unlade_fn_model::lambda::Refusal;

use super::tenant_stacks::TenantStacks;
use super::{driver, identities};
use crate::host::Host;

/// The stacks of a gateway, by tenant.
pub struct StackService {
    host: Rc<Host>,
    tenants: RefCell<BTreeMap<String, Rc<TenantStacks>>>,
}

impl StackService {
    /// Reads the stacks and the roles of all configured tenants. To be called before functions are loaded,
    /// which may have these roles.
    pub fn open(host: &Rc<Host>) -> Rc<StackService> {
        let service = Rc::new(StackService { host: host.clone(), tenants: RefCell::default() });
        let named = identities::tenants(&host.config.state);
        let named = named.unwrap_or_else(|error| {
            tracing::error!(%error, "the stacks of tenants are not read");
            Vec::new()
        });
        for name in named {
            if host.tenants.get(&name).is_none() {
                let why = "its tenant is not in fn.toml";
                tracing::error!(tenant = name, why, "stacks are left alone");
            } else if let Err(refusal) = service.of(&name) {
                tracing::error!(tenant = name, why = refusal.message(), "stacks are left alone");
            }
        }
        service
    }

    /// The stacks of a tenant.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn of(&self, tenant: &str) -> Result<Rc<TenantStacks>, Refusal> {
        if let Some(stacks) = self.tenants.borrow().get(tenant) {
            return Ok(stacks.clone());
        }
        let failed = |error| Refusal::Service(format!("the stacks of {tenant}: {error}"));
        let stacks = Rc::new(TenantStacks::load(&self.host, tenant).map_err(failed)?);
        self.tenants.borrow_mut().insert(tenant.to_owned(), stacks.clone());
        Ok(stacks)
    }

    /// Continues the operations in progress of a tenant.
    pub fn drive(&self, stacks: &Rc<TenantStacks>) {
        for id in stacks.running() {
            driver::drive(&self.host, stacks, &id);
        }
    }

    /// Continues all operations in progress: a gateway before was ended within them.
    pub fn resume(&self) {
        let all: Vec<_> = self.tenants.borrow().values().cloned().collect();
        for stacks in all {
            self.drive(&stacks);
        }
    }
}
