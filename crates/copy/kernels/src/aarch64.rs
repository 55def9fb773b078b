//! Copy loops for 64-bit ARM, in assembly, so that the handler can recover from a fault in them.
//!
//! Every routine keeps one invariant at each instruction that touches memory: `x2` bytes are left
//! to copy, from `x1` to `x0`, and everything before is done. So after a fault in any loop,
//! `recover` can copy the rest byte by byte, up to the bad byte itself. After a fault in
//! `recover`, `give_up` returns the number of bytes left.
//!
//! The signal handler of [`crate::guard`] reads the program counter and resumes at one of these
//! two labels. It passes the kind of fault in `x3` and the address in `x4`, which no routine uses.
//! No routine uses the stack or the link register, so a label can return to the routine's caller.
//! caller.

use std::arch::global_asm;
use std::ffi::c_void;

use crate::routine::{Kernel, Raw};

/// True if the guard works on this architecture.
pub(crate) const GUARDED: bool = true;

global_asm!(
    r#"
.pushsection .text.unlade_copyunit, "ax", @progbits

.macro copyunit_enter name
    .globl \name
    .hidden \name
    .type \name, @function
    .p2align 6
\name:
    .cfi_startproc
.endm

.macro copyunit_leave
    mov x0, xzr
    ret
.endm

.macro copyunit_end name
    .cfi_endproc
    .size \name, . - \name
.endm

# 64 bytes at a time while more than 64 are left, from an aligned destination; then the last 64,
# which may overlap what is done. More than 128 bytes.
.macro copyunit_long store
    ldr q0, [x1]
    str q0, [x0]
    neg x5, x0
    and x5, x5, #15
    add x0, x0, x5
    add x1, x1, x5
    sub x2, x2, x5
    .p2align 6
9:
    ldp q0, q1, [x1]
    ldp q2, q3, [x1, #32]
    \store q0, q1, [x0]
    \store q2, q3, [x0, #32]
    add x1, x1, #64
    add x0, x0, #64
    sub x2, x2, #64
    cmp x2, #64
    b.hi 9b
    add x5, x1, x2
    add x6, x0, x2
    ldp q0, q1, [x5, #-64]
    ldp q2, q3, [x5, #-32]
    stp q0, q1, [x6, #-64]
    stp q2, q3, [x6, #-32]
.endm

.globl unlade_copyunit_begin
.hidden unlade_copyunit_begin
unlade_copyunit_begin:

copyunit_enter unlade_copyunit_neon
    add x5, x1, x2
    add x6, x0, x2
    cmp x2, #16
    b.lo 2f
    cmp x2, #32
    b.hi 3f
    ldr q0, [x1]
    ldr q1, [x5, #-16]
    str q0, [x0]
    str q1, [x6, #-16]
    copyunit_leave
2:
    cmp x2, #8
    b.lo 4f
    ldr x7, [x1]
    ldr x8, [x5, #-8]
    str x7, [x0]
    str x8, [x6, #-8]
    copyunit_leave
4:
    cmp x2, #4
    b.lo unlade_copyunit_bytes
    ldr w7, [x1]
    ldr w8, [x5, #-4]
    str w7, [x0]
    str w8, [x6, #-4]
    copyunit_leave
3:
    cmp x2, #64
    b.hi 5f
    ldp q0, q1, [x1]
    ldp q2, q3, [x5, #-32]
    stp q0, q1, [x0]
    stp q2, q3, [x6, #-32]
    copyunit_leave
5:
    cmp x2, #128
    b.hi 6f
    ldp q0, q1, [x1]
    ldp q2, q3, [x1, #32]
    ldp q4, q5, [x5, #-64]
    ldp q6, q7, [x5, #-32]
    stp q0, q1, [x0]
    stp q2, q3, [x0, #32]
    stp q4, q5, [x6, #-64]
    stp q6, q7, [x6, #-32]
    copyunit_leave
6:
    copyunit_long stp
    copyunit_leave
copyunit_end unlade_copyunit_neon

copyunit_enter unlade_copyunit_stream_neon
    cmp x2, #128
    b.ls unlade_copyunit_bytes
    copyunit_long stnp
    dmb ish
    copyunit_leave
copyunit_end unlade_copyunit_stream_neon

.globl unlade_copyunit_end
.hidden unlade_copyunit_end
unlade_copyunit_end:

copyunit_enter unlade_copyunit_bytes
    cbz x2, 3f
.globl unlade_copyunit_bytes_begin
.hidden unlade_copyunit_bytes_begin
unlade_copyunit_bytes_begin:
2:
    ldrb w5, [x1]
    strb w5, [x0]
    add x1, x1, #1
    add x0, x0, #1
    subs x2, x2, #1
    b.ne 2b
.globl unlade_copyunit_bytes_end
.hidden unlade_copyunit_bytes_end
unlade_copyunit_bytes_end:
3:
    copyunit_leave
copyunit_end unlade_copyunit_bytes

# The barrier is for what was stored around the caches before the fault.
copyunit_enter unlade_copyunit_recover
    dmb ish
    b unlade_copyunit_bytes
copyunit_end unlade_copyunit_recover

copyunit_enter unlade_copyunit_give_up
    orr x0, x3, x2, lsl #2
    mov x1, x4
    ret
copyunit_end unlade_copyunit_give_up

.purgem copyunit_enter
.purgem copyunit_leave
.purgem copyunit_end
.purgem copyunit_long
.popsection
"#
);

unsafe extern "C" {
    fn unlade_copyunit_neon(dst: *mut u8, src: *const u8, bytes: usize) -> Raw;
    fn unlade_copyunit_bytes(dst: *mut u8, src: *const u8, bytes: usize) -> Raw;
    fn unlade_copyunit_stream_neon(dst: *mut u8, src: *const u8, bytes: usize) -> Raw;

    // Labels in the code, which are never called or read; only their addresses are used.
    static unlade_copyunit_begin: u8;
    static unlade_copyunit_end: u8;
    static unlade_copyunit_bytes_begin: u8;
    static unlade_copyunit_bytes_end: u8;
    static unlade_copyunit_recover: u8;
    static unlade_copyunit_give_up: u8;
}

/// Returns the loops that this processor can run, the preferred first. All processors have NEON.
/// Async-signal-safe.
pub(crate) fn kernels() -> impl Iterator<Item = Kernel> {
    let neon = Kernel::guarded("neon", unlade_copyunit_neon);
    [neon, Kernel::guarded("bytes", unlade_copyunit_bytes)].into_iter()
}

/// Returns the loops that store around the caches, the preferred first. Async-signal-safe.
pub(crate) fn streams() -> impl Iterator<Item = Kernel> {
    std::iter::once(Kernel::guarded("stream-neon", unlade_copyunit_stream_neon))
}

/// Redirects a thread that faulted in one of the loops to its recovery label. Returns true if the
/// fault was in a loop.
///
/// Async-signal-safe.
///
/// # Safety
/// `context` is the `ucontext_t` that the kernel passed to the running signal handler.
pub(crate) unsafe fn divert(context: *mut c_void, kind: usize, address: usize) -> bool {
    // SAFETY: the caller guarantees a valid context; only its handler refers to it while the
    // handler runs.
    let machine = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    let Some(landing) = landing(machine.pc as usize) else {
        return false;
    };
    machine.pc = landing as u64;
    machine.regs[3] = kind as u64;
    machine.regs[4] = address as u64;
    true
}

/// Returns the recovery label for a fault at `counter`.
fn landing(counter: usize) -> Option<usize> {
    let begin = (&raw const unlade_copyunit_begin).addr();
    let end = (&raw const unlade_copyunit_end).addr();
    let bytes = (&raw const unlade_copyunit_bytes_begin).addr();
    let bytes_end = (&raw const unlade_copyunit_bytes_end).addr();
    if (begin..end).contains(&counter) {
        Some((&raw const unlade_copyunit_recover).addr())
    } else if (bytes..bytes_end).contains(&counter) {
        Some((&raw const unlade_copyunit_give_up).addr())
    } else {
        None
    }
}
