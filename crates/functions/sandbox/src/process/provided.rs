//! Instances of functions with a runtime of their own, and of those in Node.js: each has a whole
//! sandbox.
//!
//! A fork would share nothing but a small program, and its instances would share one network
//! namespace: `bootstrap` listens on, and connects to, ports of the loopback.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use unlade_fn_model::isolation::{
    Image, Instance, IsolationError, Local, Origin, Started, Template, Usage,
};

use super::config::{Launcher, ProcessConfig};
use super::spec;
use super::template::Zygote;

/// The template: what an instance is made of.
pub struct Provided {
    image: Image,
    config: ProcessConfig,
    launcher: Launcher,
    /// The number of the next sandbox.
    next_number: fn() -> u32,
}

impl Provided {
    /// Checks the function's files; `next_number` numbers the sandboxes of the backend.
    ///
    /// # Errors
    /// A file is missing or not readable by every user.
    pub fn new(
        image: &Image,
        config: &ProcessConfig,
        launcher: &Launcher,
        next_number: fn() -> u32,
    ) -> Result<Provided, IsolationError> {
        spec::provided(image, launcher, config, 0)?;
        // A sandbox has one instance.
        let config = ProcessConfig { spares: 0, ..config.clone() };
        Ok(Provided { image: image.clone(), config, launcher: launcher.clone(), next_number })
    }

    async fn started(&self, name: &str) -> Result<Started, IsolationError> {
        let number = (self.next_number)();
        let spec = spec::provided(&self.image, &self.launcher, &self.config, number)?;
        let sandbox = Zygote::start(&self.image, spec, &self.config, &self.launcher).await?;
        let started = sandbox.start(name).await?;
        let instance = Rc::new(Alone { instance: started.instance, sandbox });
        Ok(Started { instance, origin: Origin::Cold, ..started })
    }
}

impl Template for Provided {
    fn start<'a>(&'a self, name: &'a str) -> Local<'a, Result<Started, IsolationError>> {
        Box::pin(self.started(name))
    }

    fn unpreloaded(&self) -> Option<&unlade_fn_model::isolation::Unpreloaded> {
        None
    }

    /// The template is no process.
    fn usage(&self) -> io::Result<Usage> {
        Ok(Usage::default())
    }

    /// It can always start another instance.
    fn ended(&self) -> Local<'_, String> {
        Box::pin(pending())
    }
}

/// An instance with the processes of its sandbox, which are its own.
struct Alone {
    instance: Rc<dyn Instance>,
    sandbox: Zygote,
}

impl Instance for Alone {
    fn ended(&self) -> Local<'_, String> {
        self.instance.ended()
    }

    fn usage(&self) -> io::Result<Usage> {
        let (own, sandbox) = (self.instance.usage()?, self.sandbox.usage()?);
        Ok(Usage {
            pss_bytes: own.pss_bytes + sandbox.pss_bytes,
            private_bytes: own.private_bytes + sandbox.private_bytes,
            cpu: own.cpu + sandbox.cpu,
        })
    }

    fn kill(&self) {
        self.instance.kill();
    }

    fn freeze_after(&self) -> Option<Duration> {
        self.instance.freeze_after()
    }

    fn freeze(&self) -> io::Result<()> {
        self.instance.freeze()
    }

    fn thaw(&self) -> io::Result<()> {
        self.instance.thaw()
    }

    fn is_frozen(&self) -> bool {
        self.instance.is_frozen()
    }

    fn scratch_used_bytes(&self) -> u64 {
        self.instance.scratch_used_bytes()
    }

    fn limit_memory(&self) -> bool {
        self.instance.limit_memory()
    }

    fn memory_peak_bytes(&self) -> Option<u64> {
        self.instance.memory_peak_bytes()
    }

    fn take_output(&self) -> Option<OwnedFd> {
        self.instance.take_output()
    }
}
