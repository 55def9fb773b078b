//! QEMU's command line, for a machine that boots and for one that is restored.
//!
//! Both must have the same devices in the same order, because a saved state consists of device
//! states.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::Path;
use std::process::Command;

use super::memory::Memory;
use super::parts::Parts;

/// Unused devices are omitted: they cost time at each start, and memory.
const MACHINE: &str =
    "pc,hpet=off,usb=off,smm=off,vmport=off,i8042=off,mem-merge=off,dump-guest-core=off";
/// Size of the translation cache of one machine.
const TRANSLATED_MIB: u32 = 32;
/// Quiet; a kernel panic ends the machine instead of rebooting it.
const KERNEL_WORDS: &str = "console=hvc0 quiet panic=-1 random.trust_cpu=on";

/// The network of a function with its own boto3: QEMU opens its connections, as QEMU's user. The
/// host is [`HOST`].
const NETWORK: [&str; 4] =
    ["-netdev", "user,id=net,ipv6=off", "-device", "virtio-net-pci,netdev=net,romfile="];
/// The host's address in a machine with a network.
pub(super) const HOST: &str = "10.0.2.2";
/// The device of KVM.
pub(super) const KVM: &str = "/dev/kvm";

/// The accelerator of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// Hardware virtualization.
    Kvm,
    /// Software emulation.
    Tcg,
}

impl Accelerator {
    /// The name in metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        }
    }
}

/// The numbers of inherited descriptors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub ram: RawFd,
    pub region: RawFd,
    pub disks: [RawFd; 2],
    pub monitor: RawFd,
    pub console: RawFd,
    pub control: RawFd,
    pub channel: RawFd,
}

/// The way in which a machine starts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Beginning<'a> {
    /// From a kernel; its writes to RAM are stored in the file.
    Boot {
        /// The initial root file system.
        initramfs: &'a Path,
        /// The path of the interpreter.
        python: &'a Path,
        /// The size of the writable `/tmp`.
        scratch_bytes: u64,
    },
    /// From a saved state; its writes to RAM are private.
    Restore,
}

/// Creates the command.
pub(super) fn command(
    parts: &Parts,
    accelerator: Accelerator,
    memory: Memory,
    numbers: Numbers,
    has_network: bool,
    beginning: Beginning<'_>,
    name: &str,
) -> Command {
    let mut command = Command::new(&parts.qemu);
    // A comma is doubled, because a single one separates options.
    command.arg("-name").arg(name.replace(',', ",,"));
    command.env_clear().env("LD_LIBRARY_PATH", &parts.libraries);
    for directory in &parts.firmware {
        command.arg("-L").arg(directory);
    }
    command.args(machine(accelerator, memory));
    command.args(pieces(memory, numbers, matches!(beginning, Beginning::Boot { .. })));
    command.args(devices(numbers));
    if has_network {
        command.args(NETWORK);
    }
    match beginning {
        Beginning::Restore => {
            command.args(["-incoming", "defer"]);
        }
        Beginning::Boot { initramfs, python, scratch_bytes } => {
            let mut words = OsString::from(KERNEL_WORDS);
            words.push(format!(" {} UNLADE_SCRATCH={scratch_bytes}", memory.kernel_words()));
            words.push(" UNLADE_PYTHON=");
            words.push(python);
            command.arg("-kernel").arg(&parts.kernel).arg("-initrd").arg(initramfs);
            command.arg("-append").arg(words);
        }
    }
    command
}

fn machine(accelerator: Accelerator, memory: Memory) -> Vec<String> {
    let (accelerator, processor) = match accelerator {
        Accelerator::Kvm => ("kvm".to_owned(), "host"),
        Accelerator::Tcg => (format!("tcg,tb-size={TRANSLATED_MIB}"), "max"),
    };
    let size = memory.all_mib().to_string();
    let words =
        ["-M", MACHINE, "-accel", &accelerator, "-cpu", processor, "-smp", "1", "-m", &size];
    let rest = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"];
    // QEMU has all descriptors that it needs, so it may neither start processes nor gain
    // privileges.
    let sandbox = ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny"];
    words.iter().chain(&rest).chain(&sandbox).map(|word| (*word).to_owned()).collect()
}

/// The memory nodes: one for each range, so that each has its own address.
fn pieces(memory: Memory, numbers: Numbers, is_saved: bool) -> Vec<String> {
    let file = |name: &str, bytes: u64, number: RawFd, rest: String| {
        let file = format!("memory-backend-file,id={name},size={bytes}");
        ["-object".to_owned(), format!("{file},mem-path=/proc/self/fd/{number},{rest}")]
    };
    let ram = |offset: u64| match is_saved {
        true => format!("offset={offset},share=on"),
        false => format!("offset={offset},share=off,readonly=on,rom=off"),
    };
    let mut words = Vec::new();
    words.extend(file("low", memory.low_bytes, numbers.ram, ram(0)));
    words.extend(file("region", memory.region_bytes, numbers.region, "share=on".to_owned()));
    words.extend(file("high", memory.high_bytes, numbers.ram, ram(memory.low_bytes)));
    for node in ["node,memdev=low,cpus=0", "node,memdev=region", "node,memdev=high"] {
        words.extend(["-numa".to_owned(), node.to_owned()]);
    }
    words
}

fn devices(numbers: Numbers) -> Vec<String> {
    let socket = |name: &str, number: RawFd| {
        ["-chardev".to_owned(), format!("socket,id={name},fd={number}")]
    };
    let device = |text: String| ["-device".to_owned(), text];
    let mut words = Vec::new();
    words.extend(socket("monitor", numbers.monitor));
    words.extend(["-mon".to_owned(), "chardev=monitor,mode=control".to_owned()]);
    words.extend(device("virtio-serial-pci,max_ports=3".to_owned()));
    words.extend(socket("console", numbers.console));
    words.extend(device("virtconsole,chardev=console,nr=0".to_owned()));
    words.extend(socket("control", numbers.control));
    words.extend(device("virtserialport,chardev=control,nr=1".to_owned()));
    words.extend(socket("channel", numbers.channel));
    words.extend(device("virtserialport,chardev=channel,nr=2".to_owned()));
    for (name, number) in ["base", "function"].into_iter().zip(numbers.disks) {
        let file = format!("file=/proc/self/fd/{number},format=raw,readonly=on,file.locking=off");
        words.extend(["-drive".to_owned(), format!("if=none,id={name},{file}")]);
        words.extend(device(format!("virtio-blk-pci,drive={name}")));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(beginning: Beginning<'_>) -> Vec<String> {
        let parts = Parts {
            qemu: "/q".into(),
            libraries: "/l".into(),
            firmware: vec!["/f".into()],
            kernel: "/k".into(),
            modules: "/m".into(),
            busybox: "/b".into(),
            version: "6".to_owned(),
        };
        let numbers = Numbers {
            ram: 3,
            region: 4,
            disks: [5, 6],
            monitor: 7,
            console: 8,
            control: 9,
            channel: 10,
        };
        let memory = Memory::new(1 << 27, 0).unwrap();
        let command = command(&parts, Accelerator::Tcg, memory, numbers, false, beginning, "f/m,1");
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_restored_machine_has_the_devices_of_the_one_that_was_saved() {
        let python = Path::new("/usr/bin/python3.11");
        let scratch_bytes = 1 << 20;
        let boot = Beginning::Boot { initramfs: Path::new("/i"), python, scratch_bytes };
        let (boots, restores) = (words(boot), words(Beginning::Restore));
        let devices = |words: &[String]| -> Vec<String> {
            let pairs = words.windows(2).filter(|pair| pair[0] == "-device" || pair[0] == "-numa");
            pairs.map(|pair| pair[1].clone()).collect()
        };
        assert_eq!(devices(&boots).len(), 9);
        assert_eq!(devices(&boots), devices(&restores));
        assert_eq!(restores[..2], ["-name", "f/m,,1"]);
        assert!(restores.contains(&"-incoming".to_owned()));
        assert!(!restores.contains(&"-kernel".to_owned()));
        assert!(boots.last().unwrap().ends_with("UNLADE_PYTHON=/usr/bin/python3.11"));
    }

    #[test]
    fn ram_is_written_to_by_the_machine_that_is_saved_alone() {
        let of_ram = |words: Vec<String>| -> Vec<String> {
            words.into_iter().filter(|word| word.contains("/proc/self/fd/3,")).collect()
        };
        let python = Path::new("/p");
        let boot = Beginning::Boot { initramfs: Path::new("/i"), python, scratch_bytes: 0 };
        let boots = of_ram(words(boot));
        assert!(boots.len() == 2 && boots.iter().all(|word| word.ends_with("share=on")));
        let restores = of_ram(words(Beginning::Restore));
        assert!(restores.len() == 2);
        assert!(restores.iter().all(|word| word.ends_with("share=off,readonly=on,rom=off")));
    }
}
