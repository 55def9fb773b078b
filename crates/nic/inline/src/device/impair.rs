//! Impairment of one direction of a wire, for frames with open offload work.

use unlade_sys::vnet::VnetHeader;

use crate::impair::{ImpairStats, Lane, Seeded};

/// One direction of a wire.
pub struct Impaired {
    line: Lane<(VnetHeader, Vec<u8>)>,
}

impl Impaired {
    /// Creates a direction, 0 or 1.
    pub fn new(seeded: Seeded, direction: u8) -> Impaired {
        Impaired { line: Lane::new(seeded.impairment, seeded.seed, direction) }
    }

    /// Passes a frame in; frames that leave go to `out`.
    pub fn pass(
        &mut self,
        now_ns: u64,
        header: &VnetHeader,
        frame: &mut [u8],
        mut out: impl FnMut(&VnetHeader, &mut [u8]),
    ) {
        if !self.line.is_lost() {
            if self.line.is_doubled() {
                self.send(now_ns, header, &mut frame.to_vec(), &mut out);
            }
            // A checksum that is still to be computed would hide the damage.
            if header.checksum_at.is_none() {
                self.line.damage(frame);
            }
            self.send(now_ns, header, frame, &mut out);
        }
        self.release(now_ns, out);
    }

    fn send(
        &mut self,
        now_ns: u64,
        header: &VnetHeader,
        frame: &mut [u8],
        out: &mut impl FnMut(&VnetHeader, &mut [u8]),
    ) {
        match self.line.wait() {
            None => out(header, frame),
            // If too many frames wait, it is lost and counted.
            Some(wait) => {
                let _ = self.line.hold((*header, frame.to_vec()), frame.len(), wait, now_ns);
            }
        }
    }

    /// Releases the frames whose delay is over.
    pub fn release(&mut self, now_ns: u64, mut out: impl FnMut(&VnetHeader, &mut [u8])) {
        self.line.release(now_ns, |(header, mut frame)| out(&header, &mut frame));
    }

    /// Returns true if frames wait.
    pub fn holds(&self) -> bool {
        self.line.holds()
    }

    /// Counters of the impairments.
    pub fn stats(&self) -> ImpairStats {
        self.line.stats()
    }
}

#[cfg(test)]
mod tests {
    use unlade_sys::vnet::VnetHeader;

    use super::Impaired;

    fn run(text: &str) -> (Vec<u32>, Impaired) {
        let mut wire = Impaired::new(text.parse().unwrap(), 1);
        let mut out = Vec::new();
        let mut take = |_: &VnetHeader, frame: &mut [u8]| {
            out.push(u32::from_be_bytes(frame.try_into().unwrap()));
        };
        for number in 0..20_000u32 {
            wire.pass(0, &VnetHeader::default(), &mut number.to_be_bytes(), &mut take);
        }
        wire.release(u64::MAX / 2, &mut take);
        (out, wire)
    }

    #[test]
    fn every_frame_is_accounted_for_and_a_seed_repeats_a_run() {
        let (out, wire) = run("loss=2%,reorder=3%,duplicate=1%,seed=9");
        let stats = wire.stats();
        assert_eq!(out.len() as u64, 20_000 - stats.lost + stats.duplicated);
        assert!((300..500).contains(&stats.lost), "{}", stats.lost);
        assert!((450..750).contains(&stats.reordered), "{}", stats.reordered);
        assert!((120..280).contains(&stats.duplicated), "{}", stats.duplicated);
        let late = out.windows(2).filter(|pair| pair[1] < pair[0]).count() as u64;
        assert!(late > stats.reordered / 2);
        assert_eq!(run("loss=2%,reorder=3%,duplicate=1%,seed=9").0, out);
        assert_ne!(run("loss=2%,reorder=3%,duplicate=1%,seed=8").0, out);
    }

    #[test]
    fn without_impairment_nothing_changes() {
        assert!(run("").0.into_iter().eq(0..20_000));
    }

    #[test]
    fn what_waits_keeps_what_is_left_to_do_and_its_place_in_the_row() {
        let mut wire = Impaired::new("delay=5,corrupt=100%".parse().unwrap(), 1);
        let header = |at| VnetHeader { checksum_at: Some((at, 16)), ..VnetHeader::default() };
        let mut came = Vec::new();
        let mut take = |header: &VnetHeader, frame: &mut [u8]| came.push((*header, frame[0]));
        for number in 0..9u8 {
            wire.pass(0, &header(number.into()), &mut [number; 100], &mut take);
        }
        wire.release(4_999_999, &mut take);
        assert!(wire.holds());
        wire.release(5_000_000, &mut take);
        assert!(!wire.holds());
        let all = (0..9u8).map(|number| (header(number.into()), number));
        assert!(came.into_iter().eq(all), "a sum that is still to be made would hide damage");
        assert_eq!(wire.stats().corrupted, 0);
        let mut damaged = None;
        wire.pass(9, &VnetHeader::default(), &mut [0; 100], |_, _| unreachable!("it is late"));
        wire.release(u64::MAX / 2, |_, frame| damaged = Some(frame.to_vec()));
        let bits: u32 = damaged.unwrap().iter().map(|byte| byte.count_ones()).sum();
        assert_eq!((bits, wire.stats().corrupted), (1, 1));
    }
}
