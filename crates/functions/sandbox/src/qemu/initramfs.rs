//! The initial root file system of a machine: busybox, modules for its disks, and a script that
//! switches to the final root.

use std::collections::HashSet;
use std::fs;
use std::io;

use super::cpio::Cpio;
use super::parts::Parts;

/// Required features that may be modules. ext4 requires the checksum module although the disks
/// have no checksums.
const MODULES: [&str; 5] = ["virtio_pci", "virtio_blk", "virtio_net", "crc32c_generic", "ext4"];

/// Mounts the disks, and executes Python as the first process. The kernel passes words of its
/// command line as variables.
const INIT: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sys /sys
mount -t devtmpfs -o nosuid dev /dev
exec </dev/null >/dev/hvc0 2>&1
while read -r module; do insmod \"/modules/$module\"; done </modules/order
mount -t ext4 -o ro,noload,noatime,nodev,nosuid /dev/vda /base
mount -t ext4 -o ro,noload,noatime,nodev,nosuid /dev/vdb /base/function
mount -t tmpfs -o \"size=$UNLADE_SCRATCH,mode=1777,nosuid,nodev\" tmpfs /base/tmp
mkdir -p /dev/shm
mount -t tmpfs -o \"size=$UNLADE_SCRATCH,mode=1777,nosuid,nodev\" tmpfs /dev/shm
ifconfig lo 127.0.0.1 up
if [ -e /sys/class/net/eth0 ]; then
    ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up
    route add default gw 10.0.2.2
fi
mount --move /dev /base/dev
mount --move /proc /base/proc
mount --move /sys /base/sys
exec switch_root /base \"$UNLADE_PYTHON\" -I -c \"
import sys
sys.path.insert(0, '/function/guest')
from unlade_guest.machine import main
main('/function/start.json')
# At once, and without the kernel's complaint about the end of its first process.
open('/proc/sysrq-trigger', 'w').write('b')\"
";

/// Builds the archive.
///
/// # Errors
/// The system call failed: a module or busybox cannot be read.
pub(super) fn build(parts: &Parts) -> io::Result<Vec<u8>> {
    let mut archive = Cpio::default();
    for name in ["bin", "proc", "sys", "dev", "base", "modules"] {
        archive.directory(name);
    }
    archive.device("dev/console", 5, 1);
    archive.file("bin/busybox", 0o755, &fs::read(&parts.busybox)?);
    archive.file("init", 0o755, INIT.as_bytes());
    let dependencies = fs::read_to_string(parts.modules.join("modules.dep"))?;
    let mut order = String::new();
    for path in needed(&dependencies, &MODULES) {
        let name = path.rsplit('/').next().unwrap_or(path);
        archive.file(&format!("modules/{name}"), 0o644, &fs::read(parts.modules.join(path))?);
        order.push_str(name);
        order.push('\n');
    }
    archive.file("modules/order", 0o644, order.as_bytes());
    Ok(archive.finish())
}

/// Files of modules with their dependencies, in load order. A module that is not in the list is
/// built into the kernel.
fn needed<'a>(dependencies: &'a str, names: &[&str]) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    for name in names {
        let is_named = |path: &str| {
            let file = path.rsplit('/').next().unwrap_or(path);
            file.split('.').next().unwrap_or_default().replace('-', "_") == *name
        };
        let mut lines = dependencies.lines().filter_map(|line| line.split_once(':'));
        let Some((path, before)) = lines.find(|(path, _)| is_named(path)) else { continue };
        // depmod(8) lists the first module to load last.
        for path in before.split_whitespace().rev().chain([path]) {
            if seen.insert(path) {
                found.push(path);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_those_that_they_need_and_once() {
        let list = "kernel/fs/ext4/ext4.ko.xz: kernel/fs/mbcache.ko.xz kernel/lib/crc16.ko.xz\n\
            kernel/drivers/block/virtio_blk.ko: kernel/lib/crc16.ko.xz\n\
            kernel/fs/ext2/ext2.ko:\n";
        assert_eq!(
            needed(list, &["virtio_pci", "virtio_blk", "ext4"]),
            [
                "kernel/lib/crc16.ko.xz",
                "kernel/drivers/block/virtio_blk.ko",
                "kernel/fs/mbcache.ko.xz",
                "kernel/fs/ext4/ext4.ko.xz"
            ]
        );
    }
}
