//! Static user probes of the copy service (`.note.stapsdt`): a tracer (perf, bpftrace, SystemTap,
//! gdb) attaches to them in the library or program while it runs. A probe without a tracer costs a
//! comparison with zero; its arguments are evaluated for tracers only.
//!
//! The provider is `unlade_copy`. An argument is a word of 64 bits.
//!
//! - `submit`, before a copy of at most 1 MiB is queued, or made at once: destination, source, bytes,
//!   ticket, call site;
//! - `done`, when bytes of a copy are written, or it failed: destination, bytes, ticket, [`Maker`],
//!   error;
//! - `sync`, when a program asks for bytes: start, bytes, ticket;
//! - `waited`, when a sync had to wait for a queued copy, or copied a part of it: ticket,
//!   nanoseconds.
//!
//! A ticket is the number of a queued copy in its queue; it is [`NO_TICKET`] for a copy that is
//! made at once, and for a sync by address.
//!
//! **Form.** A probe is a function of its own, which has one `nop` and is called only while a tracer
//! is attached: a tracer then increments the probe's semaphore, see the page *User Space Probe
//! Implementation* of SystemTap. The arguments are in the registers of the calling convention. There
//! is one place for each probe, and the linker drops its note together with the function. Inlined
//! probes would leave notes of functions that were removed, with wrong addresses, where a tracer
//! would write breakpoints.

use std::sync::atomic::{AtomicU16, Ordering};

/// Ticket of a copy that is made at once, and of a sync by address: -1 for a tracer.
pub const NO_TICKET: u64 = u64::MAX;
/// Time of a wait that was not measured: -1 for a tracer.
pub const NOT_MEASURED_NS: u64 = u64::MAX;

/// The thread that made a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Maker {
    /// The submitting thread, in the submission.
    Submitter = 0,
    /// A thread of the service, or a device.
    Service = 1,
    /// A thread that waited for the copy.
    Waiter = 2,
    /// The page tables: the submitting thread has moved pages. Such a copy has any length.
    PageTables = 3,
}

/// Defines a probe: its function, its semaphore, and the note that names them.
macro_rules! probe {
    ($name:ident, $semaphore:ident, ($($argument:ident),*), $x86_64:literal, $aarch64:literal) => {
        /// Number of attached tracers, which the kernel counts. It must be in the file of the
        /// program, hence in a section of its own, not among zeroed data.
        #[unsafe(link_section = ".probes")]
        static $semaphore: AtomicU16 = AtomicU16::new(0);

        mod $name {
            #[cfg(target_arch = "x86_64")]
            macro_rules! registers { () => { $x86_64 }; }
            #[cfg(target_arch = "aarch64")]
            macro_rules! registers { () => { $aarch64 }; }

            /// The place where a tracer attaches.
            // SAFETY: the code keeps all registers and returns; the rest is data of other sections.
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            #[unsafe(naked)]
            pub(super) extern "C" fn fire($($argument: u64),*) {
                std::arch::naked_asm!(
                    "990: nop",
                    "ret",
                    ".pushsection .note.stapsdt,\"o\",\"note\",{function}",
                    ".balign 4",
                    ".4byte 992f-991f, 994f-993f, 3",
                    "991: .asciz \"stapsdt\"",
                    "992: .balign 4",
                    "993: .8byte 990b, _.stapsdt.base, {semaphore}",
                    ".asciz \"unlade_copy\"",
                    concat!(".asciz \"", stringify!($name), "\""),
                    concat!(".asciz \"", registers!(), "\""),
                    "994: .balign 4",
                    ".popsection",
                    // Tracers compare the address of this section with the one in the note: the
                    // difference tells how far a prelinker has moved the program.
                    ".ifndef _.stapsdt.base",
                    ".pushsection .stapsdt.base,\"aGR\",\"progbits\",.stapsdt.base,comdat",
                    ".weak _.stapsdt.base",
                    ".hidden _.stapsdt.base",
                    "_.stapsdt.base: .space 1",
                    ".size _.stapsdt.base, 1",
                    ".popsection",
                    ".endif",
                    function = sym fire,
                    semaphore = sym super::$semaphore,
                )
            }

            /// No probes on this architecture.
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            pub(super) fn fire($($argument: u64),*) {
                let _ = ($($argument),*);
            }

            #[cold]
            #[inline(never)]
            pub(super) fn fire_cold($($argument: u64),*) {
                fire($($argument),*);
            }
        }
    };
}

probe!(
    submit,
    SUBMIT,
    (dst, src, bytes, ticket, site),
    "8@%rdi 8@%rsi 8@%rdx -8@%rcx 8@%r8",
    "8@x0 8@x1 8@x2 -8@x3 8@x4"
);
probe!(
    done,
    DONE,
    (dst, bytes, ticket, maker, error),
    "8@%rdi 8@%rsi -8@%rdx 8@%rcx 8@%r8",
    "8@x0 8@x1 -8@x2 8@x3 8@x4"
);
probe!(sync, SYNC, (start, bytes, ticket), "8@%rdi 8@%rsi -8@%rdx", "8@x0 8@x1 -8@x2");
probe!(waited, WAITED, (ticket, ns), "-8@%rdi -8@%rsi", "-8@x0 -8@x1");

#[inline(always)]
fn is_traced(semaphore: &AtomicU16) -> bool {
    semaphore.load(Ordering::Relaxed) != 0
}

/// A copy of `bytes` begins. `site` is the address of the call site, or 0.
#[inline(always)]
pub fn submit(dst: usize, src: usize, bytes: usize, ticket: u64, site: usize) {
    if is_traced(&SUBMIT) {
        submit::fire_cold(dst as u64, src as u64, bytes as u64, ticket, site as u64);
    }
}

/// Bytes of a copy are written. `error` is 0, or the code of the copy's failure; then `bytes` are
/// those before it, as far as they are known. In a daemon `dst` is an offset in the client's
/// region.
#[inline(always)]
pub fn done(dst: usize, bytes: usize, ticket: u64, maker: Maker, error: u16) {
    if is_traced(&DONE) {
        done::fire_cold(dst as u64, bytes as u64, ticket, maker as u64, error.into());
    }
}

/// A program syncs `bytes` bytes. `start` is an address, or with a ticket an offset in the copy.
#[inline(always)]
pub fn sync(start: usize, bytes: usize, ticket: u64) {
    if is_traced(&SYNC) {
        sync::fire_cold(start as u64, bytes as u64, ticket);
    }
}

/// A sync had to wait for a copy, `ns` nanoseconds or [`NOT_MEASURED_NS`].
#[inline(always)]
pub fn waited(ticket: u64, ns: u64) {
    if is_traced(&WAITED) {
        waited::fire_cold(ticket, ns);
    }
}
