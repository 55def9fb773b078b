//! The archive format of the kernel's initial root file system: cpio, "newc"
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

const MAGIC: &str = "070701";
const ALIGN_BYTES: usize = 4;
const DIRECTORY: u32 = 0o040_755;
const CHARACTER_DEVICE: u32 = 0o020_600;
const REGULAR: u32 = 0o100_000;

/// A writer of an archive.
#[derive(Debug, Default)]
pub(super) struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

impl Cpio {
    /// Adds a directory; its parents must be added first.
    pub fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY, (0, 0), &[]);
    }

    /// Adds a file.
    pub fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entry(name, REGULAR | mode, (0, 0), content);
    }

    /// Adds a character device.
    pub fn device(&mut self, name: &str, major: u32, minor: u32) {
        self.entry(name, CHARACTER_DEVICE, (major, minor), &[]);
    }

    /// Returns the complete archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        let (links, owner, time) = (1, 0, 0);
        let sizes = (content.len() as u32, name.len() as u32 + 1);
        let fields = [
            self.entries,
            mode,
            owner,
            owner,
            links,
            time,
            sizes.0,
            0,
            0,
            device.0,
            device.1,
            sizes.1,
            0,
        ];
        self.bytes.extend(MAGIC.bytes());
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(name.bytes().chain([0]));
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN_BYTES), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn cpio_lists_what_was_put_in() {
        let mut archive = Cpio::default();
        archive.directory("dev");
        archive.device("dev/console", 5, 1);
        archive.file("init", 0o755, b"#!/bin/sh\n");
        archive.file("odd", 0o644, b"12345");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % ALIGN_BYTES, 0);
        let list = ["-itv", "--quiet"];
        let child =
            Command::new("cpio").args(list).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut child) = child else {
            println!("skipped: cpio is not installed");
            return;
        };
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].starts_with("drwxr-xr-x") && lines[0].ends_with(" dev"));
        assert!(lines[1].starts_with("crw-------") && lines[1].contains("5,   1"));
        assert!(lines[2].starts_with("-rwxr-xr-x") && lines[2].contains(" 10 "));
        assert!(lines[3].starts_with("-rw-r--r--") && lines[3].contains(" 5 "));
    }
}
