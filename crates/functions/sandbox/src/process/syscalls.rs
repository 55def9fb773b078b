//! The system call filter: calls on an allow list; all others fail with ENOSYS, so that a C
//! library falls back to others. A list of existing calls fails with EPERM instead, which
//! distinguishes forbidden calls from missing ones.
//!
//! Some calls are filtered by their arguments: `clone` without new namespaces, `socket` of the
//! families that the sandbox has. `clone3` has its flags in memory, which no filter reads: it
//! fails with ENOSYS, and C libraries use `clone`. On x86-64 the numbers of the x32 ABI are on no
//! list.

use std::collections::BTreeMap;
use std::io::{Error, Result};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
const NAMESPACES: u64 = 0x7e02_0000;

const FAMILY: u8 = 0;
const LOCAL: [libc::c_int; 1] = [libc::AF_UNIX];
const NETWORK: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

macro_rules! calls {
    ($($name:ident)*) => { &[$(libc::$name),*] };
}

/// Calls for files, memory, processes, time and sockets, as ordinary programs use them.
#[rustfmt::skip]
const ALLOWED: &[libc::c_long] = calls![
    SYS_read SYS_write SYS_pread64 SYS_pwrite64 SYS_readv SYS_writev SYS_preadv SYS_pwritev
    SYS_preadv2 SYS_pwritev2 SYS_close SYS_close_range SYS_lseek SYS_openat SYS_openat2 SYS_fstat
    SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs SYS_getdents64 SYS_dup SYS_dup3 SYS_fcntl
    SYS_ioctl SYS_flock SYS_fsync SYS_fdatasync SYS_sync SYS_syncfs SYS_sync_file_range
    SYS_truncate SYS_ftruncate SYS_fallocate SYS_fadvise64 SYS_readahead SYS_copy_file_range
    SYS_sendfile SYS_splice SYS_tee SYS_vmsplice SYS_pipe2 SYS_faccessat SYS_faccessat2 SYS_fchmod
    SYS_fchmodat SYS_fchmodat2 SYS_fchown SYS_fchownat SYS_utimensat SYS_mkdirat SYS_mknodat
    SYS_unlinkat SYS_renameat2 SYS_linkat SYS_symlinkat SYS_readlinkat SYS_umask SYS_chdir
    SYS_fchdir SYS_getcwd SYS_chroot SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_listxattr
    SYS_llistxattr SYS_flistxattr SYS_setxattr SYS_lsetxattr SYS_fsetxattr SYS_removexattr
    SYS_lremovexattr SYS_fremovexattr SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch
    SYS_memfd_create
    SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_mincore SYS_msync SYS_brk SYS_mlock
    SYS_mlock2 SYS_munlock SYS_mlockall SYS_munlockall SYS_membarrier SYS_pkey_alloc
    SYS_pkey_free SYS_pkey_mprotect
    SYS_clone SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_wait4 SYS_waitid SYS_kill
    SYS_tkill SYS_tgkill SYS_pidfd_open SYS_pidfd_send_signal SYS_rt_sigaction SYS_rt_sigprocmask
    SYS_rt_sigpending SYS_rt_sigqueueinfo SYS_rt_sigreturn SYS_rt_sigsuspend SYS_rt_sigtimedwait
    SYS_rt_tgsigqueueinfo SYS_restart_syscall SYS_sigaltstack SYS_signalfd4 SYS_getpid SYS_getppid
    SYS_gettid SYS_getpgid SYS_setpgid SYS_getsid SYS_setsid SYS_getuid SYS_geteuid SYS_getgid
    SYS_getegid SYS_getresuid SYS_getresgid SYS_getgroups SYS_setuid SYS_setgid SYS_setreuid
    SYS_setregid SYS_setresuid SYS_setresgid SYS_setfsuid SYS_setfsgid SYS_setgroups SYS_capget
    SYS_capset SYS_prctl SYS_prlimit64 SYS_getrlimit SYS_setrlimit SYS_getrusage SYS_times
    SYS_getpriority SYS_setpriority SYS_ioprio_get SYS_ioprio_set SYS_personality
    SYS_sched_yield SYS_sched_getaffinity
    SYS_sched_setaffinity SYS_sched_getparam SYS_sched_setparam SYS_sched_getscheduler
    SYS_sched_setscheduler SYS_sched_getattr SYS_sched_setattr SYS_sched_get_priority_max
    SYS_sched_get_priority_min SYS_sched_rr_get_interval SYS_getcpu SYS_set_tid_address
    SYS_set_robust_list SYS_get_robust_list SYS_rseq SYS_futex SYS_futex_waitv SYS_seccomp
    SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self
    SYS_uname SYS_sysinfo SYS_getrandom
    SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep SYS_gettimeofday
    SYS_getitimer SYS_setitimer SYS_timer_create SYS_timer_settime SYS_timer_gettime
    SYS_timer_getoverrun SYS_timer_delete SYS_timerfd_create SYS_timerfd_settime
    SYS_timerfd_gettime SYS_eventfd2 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait
    SYS_epoll_pwait2 SYS_ppoll SYS_pselect6
    SYS_bind SYS_connect SYS_listen SYS_accept SYS_accept4 SYS_getsockname
    SYS_getpeername SYS_setsockopt SYS_getsockopt SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg
    SYS_sendmmsg SYS_recvmmsg SYS_shutdown
];

/// Older names of some of those.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_HERE: &[libc::c_long] = calls![
    SYS_open SYS_creat SYS_stat SYS_lstat SYS_access SYS_getdents SYS_dup2 SYS_pipe SYS_poll
    SYS_select SYS_epoll_create SYS_epoll_wait SYS_eventfd SYS_signalfd SYS_inotify_init SYS_mkdir
    SYS_rmdir SYS_unlink SYS_rename SYS_renameat SYS_link SYS_symlink SYS_readlink SYS_chmod SYS_chown
    SYS_lchown SYS_mknod SYS_utime SYS_utimes SYS_futimesat SYS_fork SYS_vfork SYS_getpgrp
    SYS_pause SYS_alarm SYS_time SYS_arch_prctl
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[libc::c_long] = calls![SYS_renameat];

/// Calls for other processes, kernel objects, mounts, namespaces, keys, and calls with a history
/// of vulnerabilities. System V IPC and message queues are included: their objects outlive the
/// instance, are charged to no control group, and are accessible to sibling instances. POSIX
/// shared memory and semaphores are files in the instance's own `/dev/shm`.
#[rustfmt::skip]
const REFUSED: &[libc::c_long] = calls![
    SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_process_madvise SYS_process_mrelease
    SYS_pidfd_getfd SYS_kcmp
    SYS_mount SYS_umount2 SYS_pivot_root SYS_move_mount SYS_open_tree SYS_fsopen SYS_fsconfig
    SYS_fsmount SYS_fspick SYS_mount_setattr SYS_unshare SYS_setns
    SYS_name_to_handle_at SYS_open_by_handle_at SYS_fanotify_init SYS_fanotify_mark SYS_quotactl
    SYS_quotactl_fd SYS_swapon SYS_swapoff SYS_acct
    SYS_keyctl SYS_add_key SYS_request_key SYS_bpf SYS_perf_event_open SYS_userfaultfd
    SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register
    SYS_init_module SYS_finit_module SYS_delete_module SYS_kexec_load SYS_reboot
    SYS_syslog SYS_sethostname SYS_setdomainname SYS_settimeofday SYS_clock_settime
    SYS_clock_adjtime SYS_adjtimex SYS_vhangup SYS_mbind SYS_set_mempolicy
    SYS_migrate_pages SYS_move_pages
    SYS_shmget SYS_shmat SYS_shmdt SYS_shmctl SYS_semget SYS_semop SYS_semtimedop SYS_semctl
    SYS_msgget SYS_msgsnd SYS_msgrcv SYS_msgctl SYS_mq_open SYS_mq_unlink SYS_mq_timedsend
    SYS_mq_timedreceive SYS_mq_notify SYS_mq_getsetattr
];
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[libc::c_long] =
    calls![SYS_kexec_file_load SYS_iopl SYS_ioperm SYS_modify_ldt SYS_uselib];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[libc::c_long] = &[];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Applies the filter permanently to the calling thread and its future children.
///
/// # Errors
/// The kernel refused the filter, or the architecture has no filter here.
pub fn confine(network: bool) -> Result<()> {
    for program in programs(network)? {
        seccompiler::apply_filter(&program)
            .map_err(|error| Error::other(format!("the filter of system calls: {error}")))?;
    }
    Ok(())
}

/// The filters, in the order of their installation: of two refusals the kernel returns the later
/// one's.
fn programs(network: bool) -> Result<[BpfProgram; 3]> {
    let wrong = |error: seccompiler::BackendError| Error::other(error.to_string());
    let made = |rules, other, listed| -> Result<BpfProgram> {
        let here = std::env::consts::ARCH.try_into().map_err(wrong)?;
        let filter = SeccompFilter::new(rules, other, listed, here).map_err(wrong)?;
        filter.try_into().map_err(wrong)
    };
    let refusal = |errno: libc::c_int| SeccompAction::Errno(errno.unsigned_abs());
    Ok([
        made(allowed(), refusal(libc::ENOSYS), SeccompAction::Allow)?,
        made(refused().map_err(wrong)?, SeccompAction::Allow, refusal(libc::EPERM))?,
        made(families(network).map_err(wrong)?, SeccompAction::Allow, refusal(libc::EAFNOSUPPORT))?,
    ])
}

fn allowed() -> Rules {
    let sockets: &[libc::c_long] = calls![SYS_socket SYS_socketpair];
    let all = ALLOWED.iter().chain(ALLOWED_HERE).chain(sockets);
    all.map(|call| (*call, Vec::new())).collect()
}

fn refused() -> std::result::Result<Rules, seccompiler::BackendError> {
    let all = REFUSED.iter().chain(REFUSED_HERE);
    let mut rules: Rules = all.map(|call| (*call, Vec::new())).collect();
    let mut with = Vec::new();
    for bit in (0..u64::BITS).map(|bit| 1 << bit).filter(|bit| NAMESPACES & bit != 0) {
        let operator = SeccompCmpOp::MaskedEq(bit);
        let flag = SeccompCondition::new(0, SeccompCmpArgLen::Qword, operator, bit)?;
        with.push(SeccompRule::new(vec![flag])?);
    }
    rules.insert(libc::SYS_clone, with);
    Ok(rules)
}

/// Filters sockets of families that the sandbox does not have.
fn families(network: bool) -> std::result::Result<Rules, seccompiler::BackendError> {
    let allowed: &[libc::c_int] = if network { &NETWORK } else { &LOCAL };
    let others = || -> std::result::Result<_, seccompiler::BackendError> {
        let not = |family: &libc::c_int| {
            let value = u64::from(family.unsigned_abs());
            SeccompCondition::new(FAMILY, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
        };
        let conditions = allowed.iter().map(not).collect::<std::result::Result<_, _>>()?;
        Ok(vec![SeccompRule::new(conditions)?])
    };
    Ok(BTreeMap::from([(libc::SYS_socket, others()?), (libc::SYS_socketpair, others()?)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_both_allowed_and_refused() {
        let allowed = allowed();
        let refused = REFUSED.iter().chain(REFUSED_HERE);
        assert!(refused.clone().all(|call| !allowed.contains_key(call)));
        assert!(refused.count() > 50);
    }

    #[test]
    fn filters_are_within_the_kernels_limit() {
        for network in [false, true] {
            for program in programs(network).unwrap() {
                assert!(program.len() < 4096, "{}", program.len());
            }
        }
    }

    /// A filter cannot be removed, so the test applies it to a separate thread.
    #[test]
    fn a_thread_under_the_filter() {
        let confined = std::thread::spawn(|| {
            confine(false).unwrap();
            use rustix::net::{AddressFamily, SocketType, socket};
            let inet = socket(AddressFamily::INET, SocketType::STREAM, None).map(|_| ());
            let unix = socket(AddressFamily::UNIX, SocketType::STREAM, None).map(|_| ());
            let uts = unlade_sys::namespaces::unshare(&[unlade_sys::namespaces::Namespace::Uts]);
            let host = rustix::system::sethostname(b"x");
            (inet, unix, uts, host, std::thread::spawn(|| 7).join().unwrap())
        });
        let (inet, unix, uts, host, thread) = confined.join().unwrap();
        use rustix::io::Errno;
        assert_eq!(inet, Err(Errno::AFNOSUPPORT));
        assert_eq!(unix, Ok(()));
        assert_eq!((uts, host), (Err(Errno::PERM), Err(Errno::PERM)));
        assert_eq!(thread, 7, "threads are clones");
    }
}
