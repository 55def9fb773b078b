//! The ways to copy: by a loop of the program, and by the service through each interface. Each
//! gives the nanoseconds that the program sees: the copy, and the use of its bytes.

use super::case::{Buffers, Case, Interface, read_lines};
use crate::bench::samples::ns;
use std::hint::black_box;
use std::time::{Duration, Instant};
use unlade_copier::CallSite;
use unlade_copy::{Copier, Service};
use unlade_copy_kernels::Kernel;

fn wait(window: Duration) {
    let from = Instant::now();
    while from.elapsed() < window {
        std::hint::spin_loop();
    }
}

/// Times of one copy: until the call returns, and until the bytes are used after the window.
#[derive(Clone, Copy)]
struct Times {
    begin: Instant,
    /// End of the call, and of the window, if there is one.
    between: Option<(Instant, Instant)>,
    end: Instant,
}

impl Times {
    fn seen_ns(self) -> f64 {
        match self.between {
            Some((copied, resumed)) => ns(self.begin, copied) + ns(resumed, self.end),
            None => ns(self.begin, self.end),
        }
    }
}

/// Runs the window, if there is one.
fn work(window: Duration) -> Option<(Instant, Instant)> {
    if window.is_zero() {
        return None;
    }
    let copied = Instant::now();
    wait(window);
    Some((copied, Instant::now()))
}

/// Copies once by `kernel`.
pub fn alone(kernel: &Kernel, buffers: &mut Buffers, case: Case, window: Duration) -> f64 {
    buffers.prepare(case.is_cold);
    let begin = Instant::now();
    kernel.copy_slice(&mut buffers.destination, &buffers.source);
    let between = work(window);
    black_box(read_lines(&buffers.destination));
    Times { begin, between, end: Instant::now() }.seen_ns()
}

/// A call site as a static of a C program: it lives as long as the process.
fn new_site() -> &'static CallSite {
    Box::leak(Box::new(CallSite::default()))
}

/// Starts the service of the C library, which its first copy does. Its threads inherit the
/// processors of the caller.
pub fn start_c_service() {
    unlade_copier::timed::copy_while(new_site(), &mut [0], &[1], || ());
}

/// A client of a service, with a call site that has copied nothing yet.
pub enum Client {
    Rust(Box<Copier>),
    C(&'static CallSite),
}

impl Client {
    /// A new client of `service`, or of the service of the C library.
    pub fn new(interface: Interface, service: &Service) -> anyhow::Result<Client> {
        Ok(match interface {
            Interface::Rust => Client::Rust(Box::new(Copier::new(service.attach()?))),
            Interface::C => Client::C(new_site()),
        })
    }

    /// Copies once by the service.
    pub fn copy(&self, buffers: &mut Buffers, case: Case, window: Duration) -> f64 {
        buffers.prepare(case.is_cold);
        match self {
            Client::Rust(copier) => by_scope(copier, buffers, window),
            Client::C(site) => by_csync(site, buffers, window),
        }
        .seen_ns()
    }

    /// Number of copies that were queued.
    pub fn queued(&self) -> u64 {
        match self {
            Client::Rust(copier) => copier.stats().read().queued,
            Client::C(_) => unlade_copier::timed::queued(),
        }
    }
}

fn by_scope(
    copier: &Copier,
    Buffers { source, destination }: &mut Buffers,
    window: Duration,
) -> Times {
    let bytes = source.len();
    let begin = Instant::now();
    let between = copier.scope(|scope| {
        let pending = scope.copy(source, destination);
        let between = work(window);
        if let Ok(bytes) = pending.sync(0..bytes) {
            black_box(read_lines(bytes));
        }
        between
    });
    Times { begin, between, end: Instant::now() }
}

fn by_csync(
    site: &'static CallSite,
    Buffers { source, destination }: &mut Buffers,
    window: Duration,
) -> Times {
    let begin = Instant::now();
    let between = unlade_copier::timed::copy_while(site, destination, source, || work(window));
    black_box(read_lines(destination));
    Times { begin, between, end: Instant::now() }
}
