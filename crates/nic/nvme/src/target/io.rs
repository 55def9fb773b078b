//! Validation of the commands of an I/O queue (NVM §3.2). Sans-IO.

use std::sync::Arc;

use unlade_nvme_wire::command::{BlockRange, DEALLOCATE, RANGE_BYTES, RANGES_MAX};
use unlade_nvme_wire::{Command, IoOpcode, Status};

use crate::target::namespace::{Namespace, Work};

/// A valid command.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Its namespace.
    pub namespace: Arc<Namespace>,
    step: Step,
    /// Number of data bytes, in either direction.
    pub data_bytes: usize,
    /// True if the host sends the data.
    pub takes_data: bool,
}

/// Offsets and lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Read {
        offset: u64,
    },
    Write {
        offset: u64,
        durable: bool,
    },
    Compare {
        offset: u64,
    },
    Flush,
    Zero {
        offset: u64,
        bytes: u64,
        durable: bool,
    },
    /// Ranges follow as data; without AD they are hints without effect.
    Ranges {
        count: usize,
        deallocate: bool,
    },
}

/// Validates a command. Data is at most `transfer_bytes_max` bytes.
pub(crate) fn plan(
    command: &Command,
    namespaces: &[Arc<Namespace>],
    transfer_bytes_max: usize,
) -> Result<Plan, Status> {
    let opcode = IoOpcode::from_number(command.opcode()).ok_or(Status::INVALID_OPCODE)?;
    if command.fused() != 0 {
        return Err(Status::INVALID_FIELD);
    }
    let number = command.namespace();
    let namespace = namespaces.iter().find(|space| space.number == number);
    let namespace = namespace.ok_or(Status::INVALID_NAMESPACE)?.clone();
    let changes =
        matches!(opcode, IoOpcode::Write | IoOpcode::WriteZeroes | IoOpcode::DatasetManagement);
    if changes && namespace.is_read_only {
        return Err(Status::WRITE_PROTECTED);
    }
    let durable = command.force_unit_access();
    let (step, data_bytes, takes_data) = match opcode {
        IoOpcode::Flush => (Step::Flush, 0, false),
        IoOpcode::DatasetManagement => {
            let count = (command.dword(10) & 0xff) as usize + 1;
            let deallocate = command.dword(11) & DEALLOCATE != 0;
            (Step::Ranges { count, deallocate }, count * RANGE_BYTES, true)
        }
        IoOpcode::WriteZeroes => {
            let (offset, bytes) = blocks(&namespace, command)?;
            (Step::Zero { offset, bytes, durable }, 0, false)
        }
        IoOpcode::Read | IoOpcode::Write | IoOpcode::Compare => {
            let (offset, bytes) = blocks(&namespace, command)?;
            if bytes > transfer_bytes_max as u64 {
                return Err(Status::INVALID_FIELD);
            }
            let step = match opcode {
                IoOpcode::Read => Step::Read { offset },
                IoOpcode::Write => Step::Write { offset, durable },
                _ => Step::Compare { offset },
            };
            (step, bytes as usize, opcode != IoOpcode::Read)
        }
    };
    // Hosts leave any value in the descriptor of a command without data: most often zeroes, which
    // are a descriptor of another type.
    if data_bytes == 0 {
        return Ok(Plan { namespace, step, data_bytes, takes_data });
    }
    let told = command.data().map_err(|_| Status::SGL_TYPE)?.bytes() as usize;
    let data_bytes = match step {
        // Linux sends a buffer for the maximum number of ranges, even if there are fewer.
        Step::Ranges { .. } if told > data_bytes && told <= RANGES_MAX * RANGE_BYTES => told,
        _ => data_bytes,
    };
    if told != data_bytes {
        return Err(Status::SGL_DATA_LENGTH);
    }
    Ok(Plan { namespace, step, data_bytes, takes_data })
}

/// The range of a command in bytes; it is within the namespace.
fn blocks(namespace: &Namespace, command: &Command) -> Result<(u64, u64), Status> {
    let (first, count) = (command.first_block(), u64::from(command.block_count()));
    range(namespace, first, count).ok_or(Status::LBA_OUT_OF_RANGE)
}

fn range(namespace: &Namespace, first: u64, count: u64) -> Option<(u64, u64)> {
    let end = first.checked_add(count)?;
    (end <= namespace.blocks)
        .then(|| (first << namespace.block_power, count << namespace.block_power))
}

impl Plan {
    /// The work for the namespace; `data` is the received data, or empty if the host sends none.
    pub fn work(&self, data: Vec<u8>) -> Result<Work, Status> {
        if self.takes_data && data.len() != self.data_bytes {
            return Err(Status::DATA_TRANSFER);
        }
        Ok(match self.step {
            Step::Read { offset } => Work::Read { offset, bytes: self.data_bytes },
            Step::Write { offset, durable } => Work::Write { offset, data, durable },
            Step::Compare { offset } => Work::Compare { offset, data },
            Step::Flush => Work::Flush,
            Step::Zero { offset, bytes, durable } => Work::Zero { offset, bytes, durable },
            Step::Ranges { count, deallocate } => {
                Work::Discard(self.ranges(&data, count, deallocate)?)
            }
        })
    }

    fn ranges(
        &self,
        data: &[u8],
        count: usize,
        deallocate: bool,
    ) -> Result<Vec<(u64, u64)>, Status> {
        let (entries, _) = data.as_chunks::<RANGE_BYTES>();
        let all = entries.iter().take(count).map(BlockRange::parse).map(|entry| {
            range(&self.namespace, entry.first, entry.count.into()).ok_or(Status::LBA_OUT_OF_RANGE)
        });
        let all = all.collect::<Result<Vec<_>, _>>()?;
        Ok(if deallocate { all } else { Vec::new() })
    }

    /// Returns true if it reads, for the counters.
    pub fn reads(&self) -> bool {
        matches!(self.step, Step::Read { .. })
    }

    /// Returns true if it writes, for the counters.
    pub fn writes(&self) -> bool {
        matches!(self.step, Step::Write { .. })
    }
}

#[cfg(test)]
mod tests {
    use unlade_nvme_wire::DataPlace;

    use super::*;
    use crate::target::config::{NamespaceConfig, Source};

    fn spaces(read_only: bool) -> Vec<Arc<Namespace>> {
        let source = Source::Ram(unlade_config::ByteSize(16 * 512));
        let config = NamespaceConfig { source, block_bytes: 512, read_only, uuid: None };
        vec![Arc::new(Namespace::open(&config, uuid::Uuid::nil(), 1).unwrap())]
    }

    fn command(opcode: IoOpcode, first: u64, count: u32, bytes: u32) -> Command {
        let command = Command::build(opcode as u8, 1, 1).with_blocks(first, count);
        command.with_data(DataPlace::Transport { bytes })
    }

    fn refused(command: Command) -> Status {
        plan(&command, &spaces(false), 4096).map(|_| ()).unwrap_err()
    }

    #[test]
    fn ranges_end_with_the_namespace() {
        let last = plan(&command(IoOpcode::Read, 8, 8, 4096), &spaces(false), 4096).unwrap();
        let work = last.work(Vec::new()).unwrap();
        assert!(matches!(work, Work::Read { offset: 4096, bytes: 4096 }));
        assert_eq!(refused(command(IoOpcode::Read, 9, 8, 4096)), Status::LBA_OUT_OF_RANGE);
        assert_eq!(refused(command(IoOpcode::Write, 16, 1, 512)), Status::LBA_OUT_OF_RANGE);
        let far = command(IoOpcode::Write, u64::MAX, 1, 512);
        assert_eq!(refused(far), Status::LBA_OUT_OF_RANGE);
        let zeroes = command(IoOpcode::WriteZeroes, 1, 16, 0);
        assert_eq!(refused(zeroes), Status::LBA_OUT_OF_RANGE);
    }

    #[test]
    fn lengths_must_agree_and_have_a_limit() {
        assert_eq!(refused(command(IoOpcode::Read, 0, 9, 9 * 512)), Status::INVALID_FIELD);
        assert_eq!(refused(command(IoOpcode::Read, 0, 2, 512)), Status::SGL_DATA_LENGTH);
        assert_eq!(refused(command(IoOpcode::Write, 0, 2, 2048)), Status::SGL_DATA_LENGTH);
        let spaces = spaces(false);
        let write = plan(&command(IoOpcode::Write, 0, 2, 1024), &spaces, 4096).unwrap();
        assert_eq!(write.work(vec![0; 1023]).unwrap_err(), Status::DATA_TRANSFER);
        assert!(matches!(write.work(vec![0; 1024]), Ok(Work::Write { durable: false, .. })));
    }

    #[test]
    fn a_command_without_data_is_not_refused_for_its_unused_data_pointer() {
        for opcode in [IoOpcode::Flush, IoOpcode::WriteZeroes] {
            let ask = Command::build(opcode as u8, 1, 1).with_blocks(0, 1);
            for filler in [0, 0xff] {
                let mut bytes = *ask.as_bytes();
                bytes[24..40].fill(filler);
                let planned = plan(&Command::new(bytes), &spaces(false), 4096);
                assert!(planned.is_ok_and(|plan| plan.data_bytes == 0), "{opcode:?}, {filler}");
            }
        }
    }

    #[test]
    fn what_is_not_there_is_refused() {
        assert_eq!(refused(Command::build(0x7e, 1, 1)), Status::INVALID_OPCODE);
        let elsewhere = Command::build(IoOpcode::Flush as u8, 1, 2);
        assert_eq!(refused(elsewhere), Status::INVALID_NAMESPACE);
        let everywhere = Command::build(IoOpcode::Flush as u8, 1, u32::MAX);
        assert_eq!(refused(everywhere), Status::INVALID_NAMESPACE);
        let mut fused = *command(IoOpcode::Read, 0, 1, 512).as_bytes();
        fused[1] |= 1;
        assert_eq!(refused(Command::new(fused)), Status::INVALID_FIELD);
        let mut keyed = *command(IoOpcode::Read, 0, 1, 512).as_bytes();
        keyed[39] = 0x40;
        assert_eq!(refused(Command::new(keyed)), Status::SGL_TYPE);
    }

    #[test]
    fn read_only_namespaces_are_read_only() {
        let spaces = spaces(true);
        for opcode in [IoOpcode::Write, IoOpcode::WriteZeroes, IoOpcode::DatasetManagement] {
            let status = plan(&command(opcode, 0, 1, 512), &spaces, 4096).map(|_| ()).unwrap_err();
            assert_eq!(status, Status::WRITE_PROTECTED);
        }
        for opcode in [IoOpcode::Read, IoOpcode::Compare, IoOpcode::Flush] {
            assert!(plan(&command(opcode, 0, 1, 512), &spaces, 4096).is_ok());
        }
    }

    #[test]
    fn ranges_are_discarded_only_if_all_are_there() {
        let ask = Command::build(IoOpcode::DatasetManagement as u8, 1, 1)
            .with_dword(10, 1)
            .with_dword(11, DEALLOCATE)
            .with_data(DataPlace::Transport { bytes: 32 });
        let data = |count: u32| {
            let first = BlockRange { first: 0, count: 1 }.encode();
            let second = BlockRange { first: 8, count }.encode();
            [first, second].concat()
        };
        let good = plan(&ask, &spaces(false), 4096).unwrap();
        match good.work(data(8)).unwrap() {
            Work::Discard(ranges) => assert_eq!(ranges, [(0, 512), (4096, 4096)]),
            other => panic!("{other:?}"),
        }
        assert_eq!(good.work(data(9)).unwrap_err(), Status::LBA_OUT_OF_RANGE);
        let roomy = ask.with_dword(10, 0).with_data(DataPlace::Transport { bytes: 4096 });
        let roomy = plan(&roomy, &spaces(false), 4096).unwrap();
        let mut padded = data(99);
        padded.resize(4096, 0xff);
        assert!(matches!(roomy.work(padded), Ok(Work::Discard(all)) if all == [(0, 512)]));
        let short = ask.with_data(DataPlace::Transport { bytes: 16 });
        assert_eq!(refused(short), Status::SGL_DATA_LENGTH);
        let long = ask.with_data(DataPlace::Transport { bytes: 4112 });
        assert_eq!(refused(long), Status::SGL_DATA_LENGTH);
        let hint = plan(&ask.with_dword(11, 0), &spaces(false), 4096).unwrap();
        assert!(matches!(hint.work(data(8)), Ok(Work::Discard(ranges)) if ranges.is_empty()));
    }
}
