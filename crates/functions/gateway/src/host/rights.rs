//! The rights of tenants, and of the roles that their stacks have made.

use std::collections::BTreeMap;

use super::Host;
use crate::config::TenantConfig;
use crate::permit;
use crate::tenant::Tenant;

impl Host {
    /// The rules of a tenant. Roles of stacks are beside those of the operator, and never in their place.
    pub(super) fn rules(&self, tenant: &str) -> TenantConfig {
        let mut rules = self.rules.borrow().get(tenant).cloned().unwrap_or_default();
        let of_stacks = self.stack_roles.borrow();
        for (name, rights) in of_stacks.get(tenant).into_iter().flatten() {
            rules.roles.entry(name.clone()).or_insert_with(|| rights.clone());
        }
        rules
    }

    /// Returns true if the operator has configured a role of this name for a tenant.
    pub fn has_operators_role(&self, tenant: &str, name: &str) -> bool {
        self.rules.borrow().get(tenant).is_some_and(|rules| rules.roles.contains_key(name))
    }

    /// Sets the rights of the roles that stacks of a tenant have made, also for the calls of instances
    /// that run.
    pub fn set_stack_roles(&self, tenant: &str, roles: BTreeMap<String, serde_json::Value>) {
        self.stack_roles.borrow_mut().insert(tenant.to_owned(), roles);
        self.entitle_all();
    }

    /// The number of the role with a tenant's own rights, which its worker knows then.
    pub fn own_rights(&self, tenant: &Tenant) -> u64 {
        let role = tenant.own_role(|| self.next());
        tenant.role(role, permit::own_policy(&tenant.name, &self.rules(&tenant.name)));
        role
    }
}
