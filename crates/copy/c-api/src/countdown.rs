//! A number of each thread: the copies that it still makes at once before it asks the admission.
//!
//! A copy of 4 KiB takes some 30 ns. A thread-local variable of a shared library takes 3 of them,
//! because a function looks up its address. This one has its place in the thread's static area
//! (the initial-exec model), which needs no call; its four bytes fit in the reserve that the C
//! library keeps for libraries that are loaded later.

#[cfg(target_arch = "x86_64")]
use initial_exec as local;
#[cfg(not(target_arch = "x86_64"))]
use plain as local;

/// Takes one copy off the thread's number; false if it is 0.
#[inline]
pub(crate) fn take() -> bool {
    let left = local::get();
    if left != 0 {
        local::set(left - 1);
    }
    left != 0
}

/// Sets the thread's number.
pub(crate) fn set(copies: u32) {
    local::set(copies);
}

#[cfg(target_arch = "x86_64")]
mod initial_exec {
    use std::arch::{asm, global_asm};

    global_asm!(
        ".section .tbss.unlade_copier_left, \"awT\", @nobits",
        ".hidden unlade_copier_left",
        ".globl unlade_copier_left",
        ".type unlade_copier_left, @object",
        ".size unlade_copier_left, 4",
        ".p2align 2",
        "unlade_copier_left:",
        ".zero 4",
        ".text",
    );

    #[inline]
    pub fn get() -> u32 {
        let left: u32;
        // SAFETY: reads the variable above, in the calling thread's own copy.
        unsafe {
            asm!(
                "mov {at}, qword ptr [rip + unlade_copier_left@gottpoff]",
                "mov {left:e}, dword ptr fs:[{at}]",
                at = out(reg) _,
                left = out(reg) left,
                options(nostack, preserves_flags, readonly),
            );
        }
        left
    }

    #[inline]
    pub fn set(left: u32) {
        // SAFETY: writes the variable above, in the calling thread's own copy; nothing refers to
        // it.
        unsafe {
            asm!(
                "mov {at}, qword ptr [rip + unlade_copier_left@gottpoff]",
                "mov dword ptr fs:[{at}], {left:e}",
                at = out(reg) _,
                left = in(reg) left,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(any(not(target_arch = "x86_64"), test))]
mod plain {
    use std::cell::Cell;

    thread_local! {
        static LEFT: Cell<u32> = const { Cell::new(0) };
    }

    #[inline]
    pub fn get() -> u32 {
        LEFT.get()
    }

    #[inline]
    pub fn set(left: u32) {
        LEFT.set(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of both implementations, in threads of their own.
    #[test]
    fn each_thread_counts_its_own_copies() {
        let counts = |get: fn() -> u32, set: fn(u32)| {
            assert_eq!(get(), 0);
            set(3);
            std::thread::spawn(move || {
                assert_eq!(get(), 0, "a new thread");
                set(u32::MAX);
                assert_eq!(get(), u32::MAX);
            })
            .join()
            .unwrap();
            assert_eq!(get(), 3);
        };
        std::thread::spawn(move || {
            counts(local::get, local::set);
            let taken = std::iter::repeat_with(take).take(5).filter(|taken| *taken).count();
            assert_eq!((taken, local::get()), (3, 0));
            set(1);
            assert!(take() && !take());
        })
        .join()
        .unwrap();
        std::thread::spawn(move || counts(plain::get, plain::set)).join().unwrap();
    }
}
