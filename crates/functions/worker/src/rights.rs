//! The rights of a role, which the gateway may change while instances with the role run.

use std::cell::RefCell;
use std::rc::Rc;

use unlade_s3::Policy;

/// The rights of a role. All of its instances share them, so each call is decided by the latest.
#[derive(Debug, Default)]
pub struct Rights(RefCell<Rc<Policy>>);

impl Rights {
    /// Creates the rights of a policy.
    pub fn new(policy: Policy) -> Rc<Rights> {
        Rc::new(Rights(RefCell::new(Rc::new(policy))))
    }

    /// The policy now.
    pub fn policy(&self) -> Rc<Policy> {
        self.0.borrow().clone()
    }

    /// Replaces the policy: calls that were allowed go on, later ones are decided by the new one.
    pub fn replace(&self, policy: Policy) {
        *self.0.borrow_mut() = Rc::new(policy);
    }
}
