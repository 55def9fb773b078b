//! Copy loops for x86-64, in assembly, so that the handler can recover from a fault in them.
//!
//! Every routine keeps one invariant at each instruction that touches memory: `rdx` bytes are left
//! to copy, from `rsi` to `rdi`, and everything before is done. So after a fault in any loop,
//! `recover` can copy the rest byte by byte, up to the bad byte itself, with `rep movsb`, which
//! keeps `rcx`, `rsi` and `rdi` exact. After a fault in `recover`, `give_up` returns the number of
//! bytes left.
//!
//! The signal handler of [`crate::guard`] reads the program counter and resumes at one of these
//! two labels. It passes the kind of fault in `r8` and the address in `r9`, which no routine uses.
//! No routine uses the stack, so a label can return to the routine's caller.
//!
//! The 64-byte loops use only the registers 16 to 23: those leave no state behind that would slow
//! down SSE code, and need no `vzeroupper`.

use std::arch::global_asm;
use std::arch::x86_64::__cpuid_count;
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
    xor eax, eax
    ret
.endm

.macro copyunit_end name
    .cfi_endproc
    .size \name, . - \name
.endm

# Fewer than 32 bytes: two loads that may overlap, then two stores, and return.
.macro copyunit_under_32 move, x0, x1
    cmp edx, 16
    jae 16f
    cmp edx, 8
    jae 8f
    cmp edx, 4
    jae 4f
    cmp edx, 2
    jae 2f
    test edx, edx
    jz 3f
    movzx eax, byte ptr [rsi]
    mov byte ptr [rdi], al
3:
    copyunit_leave
2:
    movzx eax, word ptr [rsi]
    movzx ecx, word ptr [rsi + rdx - 2]
    mov word ptr [rdi], ax
    mov word ptr [rdi + rdx - 2], cx
    copyunit_leave
4:
    mov eax, dword ptr [rsi]
    mov ecx, dword ptr [rsi + rdx - 4]
    mov dword ptr [rdi], eax
    mov dword ptr [rdi + rdx - 4], ecx
    copyunit_leave
8:
    mov rax, qword ptr [rsi]
    mov rcx, qword ptr [rsi + rdx - 8]
    mov qword ptr [rdi], rax
    mov qword ptr [rdi + rdx - 8], rcx
    copyunit_leave
16:
    \move \x0, [rsi]
    \move \x1, [rsi + rdx - 16]
    \move [rdi], \x0
    \move [rdi + rdx - 16], \x1
    copyunit_leave
.endm

# Two vectors, which overlap unless there are exactly two.
.macro copyunit_pair vector, move, a, b
    \move \a, [rsi]
    \move \b, [rsi + rdx - \vector]
    \move [rdi], \a
    \move [rdi + rdx - \vector], \b
.endm

# Four vectors that end where the copy ends. They may begin before rdi, in what is done: then the
# same bytes are stored again.
.macro copyunit_tail vector, move, a, b, c, d
    \move \a, [rsi + rdx - 4*\vector]
    \move \b, [rsi + rdx - 3*\vector]
    \move \c, [rsi + rdx - 2*\vector]
    \move \d, [rsi + rdx - \vector]
    \move [rdi + rdx - 4*\vector], \a
    \move [rdi + rdx - 3*\vector], \b
    \move [rdi + rdx - 2*\vector], \c
    \move [rdi + rdx - \vector], \d
.endm

# One vector, then on to the next aligned address of the destination.
.macro copyunit_align vector, move, a
    \move \a, [rsi]
    \move [rdi], \a
    mov rcx, rdi
    and ecx, \vector - 1
    sub rcx, \vector
    sub rdi, rcx
    sub rsi, rcx
    add rdx, rcx
.endm

# Four vectors at a time while more than four are left; the destination is aligned.
.macro copyunit_loop vector, move, store, a, b, c, d
    .p2align 6
9:
    \move \a, [rsi]
    \move \b, [rsi + \vector]
    \move \c, [rsi + 2*\vector]
    \move \d, [rsi + 3*\vector]
    \store [rdi], \a
    \store [rdi + \vector], \b
    \store [rdi + 2*\vector], \c
    \store [rdi + 3*\vector], \d
    add rsi, 4*\vector
    add rdi, 4*\vector
    sub rdx, 4*\vector
    cmp rdx, 4*\vector
    ja 9b
.endm

# One vector or more, and return. `finish` is an instruction to end with.
.macro copyunit_vectors vector, move, finish, a, b, c, d, e, f, g, h
    cmp rdx, 2*\vector
    ja 6f
    copyunit_pair \vector, \move, \a, \b
    \finish
    copyunit_leave
6:
    cmp rdx, 4*\vector
    ja 7f
    \move \a, [rsi]
    \move \b, [rsi + \vector]
    \move \c, [rsi + rdx - 2*\vector]
    \move \d, [rsi + rdx - \vector]
    \move [rdi], \a
    \move [rdi + \vector], \b
    \move [rdi + rdx - 2*\vector], \c
    \move [rdi + rdx - \vector], \d
    \finish
    copyunit_leave
7:
    cmp rdx, 8*\vector
    ja 8f
    \move \a, [rsi]
    \move \b, [rsi + \vector]
    \move \c, [rsi + 2*\vector]
    \move \d, [rsi + 3*\vector]
    \move \e, [rsi + rdx - 4*\vector]
    \move \f, [rsi + rdx - 3*\vector]
    \move \g, [rsi + rdx - 2*\vector]
    \move \h, [rsi + rdx - \vector]
    \move [rdi], \a
    \move [rdi + \vector], \b
    \move [rdi + 2*\vector], \c
    \move [rdi + 3*\vector], \d
    \move [rdi + rdx - 4*\vector], \e
    \move [rdi + rdx - 3*\vector], \f
    \move [rdi + rdx - 2*\vector], \g
    \move [rdi + rdx - \vector], \h
    \finish
    copyunit_leave
8:
    copyunit_align \vector, \move, \a
    copyunit_loop \vector, \move, \move, \a, \b, \c, \d
    copyunit_tail \vector, \move, \a, \b, \c, \d
    \finish
    copyunit_leave
.endm

# Around the caches; less than eight vectors go to `rep movsb`.
.macro copyunit_stream vector, move, store, finish, a, b, c, d
    cmp rdx, 8*\vector
    jbe unlade_copyunit_erms
    copyunit_align \vector, \move, \a
    copyunit_loop \vector, \move, \store, \a, \b, \c, \d
    copyunit_tail \vector, \move, \a, \b, \c, \d
    sfence
    \finish
    copyunit_leave
.endm

.globl unlade_copyunit_plain_begin
.hidden unlade_copyunit_plain_begin
unlade_copyunit_plain_begin:

copyunit_enter unlade_copyunit_avx512
    cmp rdx, 64
    jae 5f
    cmp edx, 32
    jae 32f
    copyunit_under_32 vmovdqu64, xmm16, xmm17
32:
    copyunit_pair 32, vmovdqu64, ymm16, ymm17
    copyunit_leave
5:
    copyunit_vectors 64, vmovdqu64, , zmm16, zmm17, zmm18, zmm19, zmm20, zmm21, zmm22, zmm23
copyunit_end unlade_copyunit_avx512

copyunit_enter unlade_copyunit_stream_avx512
    copyunit_stream 64, vmovdqu64, vmovntdq, , zmm16, zmm17, zmm18, zmm19
copyunit_end unlade_copyunit_stream_avx512

copyunit_enter unlade_copyunit_sse2
    cmp rdx, 32
    jae 5f
    copyunit_under_32 movdqu, xmm0, xmm1
5:
    copyunit_vectors 16, movdqu, , xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7
copyunit_end unlade_copyunit_sse2

copyunit_enter unlade_copyunit_stream_sse2
    copyunit_stream 16, movdqu, movntdq, , xmm0, xmm1, xmm2, xmm3
copyunit_end unlade_copyunit_stream_sse2

.globl unlade_copyunit_plain_end
.hidden unlade_copyunit_plain_end
unlade_copyunit_plain_end:

copyunit_enter unlade_copyunit_avx2
    cmp rdx, 32
    jae 5f
    copyunit_under_32 vmovdqu, xmm0, xmm1
5:
    copyunit_vectors 32, vmovdqu, vzeroupper, ymm0, ymm1, ymm2, ymm3, ymm4, ymm5, ymm6, ymm7
copyunit_end unlade_copyunit_avx2

copyunit_enter unlade_copyunit_stream_avx2
    copyunit_stream 32, vmovdqu, vmovntdq, vzeroupper, ymm0, ymm1, ymm2, ymm3
copyunit_end unlade_copyunit_stream_avx2

.globl unlade_copyunit_avx_end
.hidden unlade_copyunit_avx_end
unlade_copyunit_avx_end:

copyunit_enter unlade_copyunit_erms
    mov rcx, rdx
.globl unlade_copyunit_bytes_begin
.hidden unlade_copyunit_bytes_begin
unlade_copyunit_bytes_begin:
    rep movsb
.globl unlade_copyunit_bytes_end
.hidden unlade_copyunit_bytes_end
unlade_copyunit_bytes_end:
    copyunit_leave
copyunit_end unlade_copyunit_erms

# `rep movsb`, which is fastest in the second-level cache, but slow where a store precedes a load of the
# next bytes at the same place in a page: there vectors copy.
.macro copyunit_mixed vectors
    mov eax, edi
    sub eax, esi
    dec eax
    and eax, 4095
    cmp eax, 63
    jb \vectors
    jmp unlade_copyunit_erms
.endm

copyunit_enter unlade_copyunit_mixed_avx512
    copyunit_mixed unlade_copyunit_avx512
copyunit_end unlade_copyunit_mixed_avx512

copyunit_enter unlade_copyunit_mixed_avx2
    copyunit_mixed unlade_copyunit_avx2
copyunit_end unlade_copyunit_mixed_avx2

# The fence is for what was stored around the caches before the fault.
copyunit_enter unlade_copyunit_recover
    sfence
    jmp unlade_copyunit_erms
copyunit_end unlade_copyunit_recover

copyunit_enter unlade_copyunit_recover_avx
    vzeroupper
    jmp unlade_copyunit_recover
copyunit_end unlade_copyunit_recover_avx

copyunit_enter unlade_copyunit_give_up
    lea rax, [r8 + 4*rcx]
    mov rdx, r9
    ret
copyunit_end unlade_copyunit_give_up

.purgem copyunit_enter
.purgem copyunit_leave
.purgem copyunit_end
.purgem copyunit_under_32
.purgem copyunit_pair
.purgem copyunit_tail
.purgem copyunit_align
.purgem copyunit_loop
.purgem copyunit_vectors
.purgem copyunit_stream
.purgem copyunit_mixed
.popsection
"#
);

unsafe extern "C" {
    fn unlade_copyunit_avx512(dst: *mut u8, src: *const u8, bytes: usize) -> Raw;
    fn unlade_copyunit_avx2(dst: *mut u8, src: *const u8, bytes: usize) -> Raw;
    fn unlade_copyunit_sse2(dst: *mut u8, src: *const u8, bytes: usize) -> Raw;
    fn unlade_copyunit_erms(dst: *mut u8, src: *const u8, bytes: usize) -> Raw;
    fn unlade_copyunit_mixed_avx512(dst: *mut u8, src: *const u8, bytes: usize) -> Raw;
    fn unlade_copyunit_mixed_avx2(dst: *mut u8, src: *const u8, bytes: usize) -> Raw;
    fn unlade_copyunit_stream_avx512(dst: *mut u8, src: *const u8, bytes: usize) -> Raw;
    fn unlade_copyunit_stream_avx2(dst: *mut u8, src: *const u8, bytes: usize) -> Raw;
    fn unlade_copyunit_stream_sse2(dst: *mut u8, src: *const u8, bytes: usize) -> Raw;

    // Labels in the code, which are never called or read; only their addresses are used.
    static unlade_copyunit_plain_begin: u8;
    static unlade_copyunit_plain_end: u8;
    static unlade_copyunit_avx_end: u8;
    static unlade_copyunit_bytes_begin: u8;
    static unlade_copyunit_bytes_end: u8;
    static unlade_copyunit_recover: u8;
    static unlade_copyunit_recover_avx: u8;
    static unlade_copyunit_give_up: u8;
}

/// Returns the loops that this processor can run, the preferred first. Async-signal-safe.
pub(crate) fn kernels() -> impl Iterator<Item = Kernel> {
    let avx512 = Kernel::guarded("avx512", unlade_copyunit_avx512);
    let avx2 = Kernel::guarded("avx2", unlade_copyunit_avx2);
    let erms = Kernel::guarded("erms", unlade_copyunit_erms);
    let sse2 = Kernel::guarded("sse2", unlade_copyunit_sse2);
    // `rep movsb` works everywhere, but is slow on processors that do not announce it.
    let (third, fourth) = if has_erms() { (erms, sse2) } else { (sse2, erms) };
    let has_avx2 = is_x86_feature_detected!("avx2");
    let mixed = match (has_avx512(), has_avx2) {
        (true, _) => Some(Kernel::guarded("mixed", unlade_copyunit_mixed_avx512)),
        (false, true) => Some(Kernel::guarded("mixed", unlade_copyunit_mixed_avx2)),
        (false, false) => None,
    };
    let mixed = mixed.filter(|_| has_erms());
    let all = [
        has_avx512().then_some(avx512),
        has_avx2.then_some(avx2),
        mixed,
        Some(third),
        Some(fourth),
    ];
    all.into_iter().flatten()
}

/// Returns the loops that store around the caches, the preferred first. Async-signal-safe.
pub(crate) fn streams() -> impl Iterator<Item = Kernel> {
    let avx512 = Kernel::guarded("stream-avx512", unlade_copyunit_stream_avx512);
    let avx2 = Kernel::guarded("stream-avx2", unlade_copyunit_stream_avx2);
    let sse2 = Kernel::guarded("stream-sse2", unlade_copyunit_stream_sse2);
    let has_avx2 = is_x86_feature_detected!("avx2");
    let all = [has_avx512().then_some(avx512), has_avx2.then_some(avx2), Some(sse2)];
    all.into_iter().flatten()
}

fn has_avx512() -> bool {
    // VL for the 16- and 32-byte forms of the registers above 15.
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl")
}

/// Returns true if CPUID leaf 7 announces "enhanced REP MOVSB/STOSB".
fn has_erms() -> bool {
    const ERMS: u32 = 1 << 9;
    // SAFETY: every x86-64 processor has the CPUID instruction. For an unknown leaf it returns the
    // values of another one, which at worst makes a slower loop preferred.
    #[allow(unused_unsafe, reason = "a safe function from Rust 1.94 on")]
    let leaf = unsafe { __cpuid_count(7, 0) };
    leaf.ebx & ERMS != 0
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
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let Some(landing) = landing(registers[libc::REG_RIP as usize] as usize) else {
        return false;
    };
    registers[libc::REG_RIP as usize] = landing as i64;
    registers[libc::REG_R8 as usize] = kind as i64;
    registers[libc::REG_R9 as usize] = address as i64;
    true
}

/// Returns the recovery label for a fault at `counter`.
fn landing(counter: usize) -> Option<usize> {
    let plain = (&raw const unlade_copyunit_plain_begin).addr();
    let avx = (&raw const unlade_copyunit_plain_end).addr();
    let avx_end = (&raw const unlade_copyunit_avx_end).addr();
    let bytes = (&raw const unlade_copyunit_bytes_begin).addr();
    let bytes_end = (&raw const unlade_copyunit_bytes_end).addr();
    if (plain..avx).contains(&counter) {
        Some((&raw const unlade_copyunit_recover).addr())
    } else if (avx..avx_end).contains(&counter) {
        Some((&raw const unlade_copyunit_recover_avx).addr())
    } else if (bytes..bytes_end).contains(&counter) {
        Some((&raw const unlade_copyunit_give_up).addr())
    } else {
        None
    }
}
