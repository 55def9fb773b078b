//! Submissions and completions: 64 bytes each, copied out of the region before they are decoded.

use super::{Extent, u16_at, u32_at, u64_at};
use unlade_bytes::DecodeError;

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 64;
/// The value of `body_left_bytes` if the length of a body is unknown.
pub const LEFT_UNKNOWN: u64 = u64::MAX;

/// The operation of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Operation {
    /// An operation of a service.
    Call = 1,
    /// The next part of a call's body.
    Body = 2,
    /// Requests the next part of a response's body.
    Read = 3,
    /// Returns the host's slots and meta of a token.
    Release = 4,
    /// Cancels a call.
    Cancel = 5,
    /// An HTTP request to a service, prepared and not signed.
    Request = 6,
}

impl Operation {
    fn of(value: u16) -> Result<Operation, DecodeError> {
        Ok(match value {
            1 => Operation::Call,
            2 => Operation::Body,
            3 => Operation::Read,
            4 => Operation::Release,
            5 => Operation::Cancel,
            6 => Operation::Request,
            _ => {
                let value = value.into();
                return Err(DecodeError::Undefined { what: "operation", value });
            }
        })
    }
}

/// More follows: BODY descriptors of the same call, or parts of the body for READ.
pub const MORE: u16 = 1;
/// The slots of one BODY are free again.
pub const PART: u16 = 2;
/// The response was prefetched.
pub const PREFETCHED: u16 = 4;
/// The write is not durable yet.
pub const PENDING: u16 = 8;
/// The call was not executed: the guest may repeat it, with all of its body.
pub const AGAIN: u16 = 16;

/// A request of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The guest's number of the call, unique among those in flight.
    pub call: u64,
    /// The operation.
    pub operation: Operation,
    /// [`MORE`].
    pub more: bool,
    /// The low half of the epoch.
    pub epoch: u32,
    /// Offset in the guest's meta arena.
    pub meta_offset: u32,
    /// Bytes in the meta arena.
    pub meta_bytes: u32,
    /// The slots of the guest. For [`Operation::Read`] `bytes` is the requested length.
    pub body: Extent,
    /// The token to read or release.
    pub token: u64,
}

impl Submission {
    /// Encodes the descriptor.
    pub fn encode(&self) -> [u8; DESCRIPTOR_BYTES] {
        let mut out = [0; DESCRIPTOR_BYTES];
        out[0..8].copy_from_slice(&self.call.to_le_bytes());
        out[8..10].copy_from_slice(&(self.operation as u16).to_le_bytes());
        out[10..12].copy_from_slice(&(if self.more { MORE } else { 0 }).to_le_bytes());
        out[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        out[16..20].copy_from_slice(&self.meta_offset.to_le_bytes());
        out[20..24].copy_from_slice(&self.meta_bytes.to_le_bytes());
        out[24..28].copy_from_slice(&self.body.first_slot.to_le_bytes());
        out[28..32].copy_from_slice(&self.body.bytes.to_le_bytes());
        out[32..40].copy_from_slice(&self.token.to_le_bytes());
        out
    }

    /// Decodes a copy of a descriptor.
    ///
    /// # Errors
    /// An operation or flag is undefined, or reserved bytes are not zero.
    pub fn decode(input: &[u8; DESCRIPTOR_BYTES]) -> Result<Submission, DecodeError> {
        let flags = u16_at(input, 10)?;
        if flags & !MORE != 0 {
            return Err(DecodeError::Undefined { what: "submission flags", value: flags.into() });
        }
        zeros(&input[40..])?;
        Ok(Submission {
            call: u64_at(input, 0)?,
            operation: Operation::of(u16_at(input, 8)?)?,
            more: flags & MORE != 0,
            epoch: u32_at(input, 12)?,
            meta_offset: u32_at(input, 16)?,
            meta_bytes: u32_at(input, 20)?,
            body: Extent { first_slot: u32_at(input, 24)?, bytes: u32_at(input, 28)? },
            token: u64_at(input, 32)?,
        })
    }
}

/// The status of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// Success.
    Done = 0,
    /// The service returned an error, which is in the meta.
    ServiceError = 1,
    /// The host failed; the meta has the reason.
    HostError = 2,
    /// A limit was reached: the guest may try again.
    Refused = 3,
}

impl Status {
    fn of(value: u16) -> Result<Status, DecodeError> {
        Ok(match value {
            0 => Status::Done,
            1 => Status::ServiceError,
            2 => Status::HostError,
            3 => Status::Refused,
            _ => return Err(DecodeError::Undefined { what: "status", value: value.into() }),
        })
    }
}

/// A response of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number in the submission.
    pub call: u64,
    /// The status.
    pub status: Status,
    /// [`MORE`], [`PART`], [`PREFETCHED`], [`PENDING`], [`AGAIN`].
    pub flags: u16,
    /// The low half of the epoch.
    pub epoch: u32,
    /// Offset in the host's meta arena.
    pub meta_offset: u32,
    /// Bytes in the meta arena.
    pub meta_bytes: u32,
    /// The slots of the host.
    pub body: Extent,
    /// The token for READ and RELEASE; 0 if there is nothing to release.
    pub token: u64,
    /// Remaining bytes of the body after these, or [`LEFT_UNKNOWN`].
    pub body_left_bytes: u64,
}

impl Completion {
    /// A completion with a status only.
    pub fn bare(call: u64, status: Status, epoch: u32) -> Completion {
        Completion {
            call,
            status,
            flags: 0,
            epoch,
            meta_offset: 0,
            meta_bytes: 0,
            body: Extent { first_slot: 0, bytes: 0 },
            token: 0,
            body_left_bytes: 0,
        }
    }

    /// Encodes the descriptor.
    pub fn encode(&self) -> [u8; DESCRIPTOR_BYTES] {
        let mut out = [0; DESCRIPTOR_BYTES];
        out[0..8].copy_from_slice(&self.call.to_le_bytes());
        out[8..10].copy_from_slice(&(self.status as u16).to_le_bytes());
        out[10..12].copy_from_slice(&self.flags.to_le_bytes());
        out[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        out[16..20].copy_from_slice(&self.meta_offset.to_le_bytes());
        out[20..24].copy_from_slice(&self.meta_bytes.to_le_bytes());
        out[24..28].copy_from_slice(&self.body.first_slot.to_le_bytes());
        out[28..32].copy_from_slice(&self.body.bytes.to_le_bytes());
        out[32..40].copy_from_slice(&self.token.to_le_bytes());
        out[40..48].copy_from_slice(&self.body_left_bytes.to_le_bytes());
        out
    }

    /// Decodes a copy of a descriptor, as a guest does.
    ///
    /// # Errors
    /// A status or flag is undefined, or reserved bytes are not zero.
    pub fn decode(input: &[u8; DESCRIPTOR_BYTES]) -> Result<Completion, DecodeError> {
        let flags = u16_at(input, 10)?;
        if flags & !(MORE | PART | PREFETCHED | PENDING | AGAIN) != 0 {
            return Err(DecodeError::Undefined { what: "completion flags", value: flags.into() });
        }
        zeros(&input[48..])?;
        Ok(Completion {
            call: u64_at(input, 0)?,
            status: Status::of(u16_at(input, 8)?)?,
            flags,
            epoch: u32_at(input, 12)?,
            meta_offset: u32_at(input, 16)?,
            meta_bytes: u32_at(input, 20)?,
            body: Extent { first_slot: u32_at(input, 24)?, bytes: u32_at(input, 28)? },
            token: u64_at(input, 32)?,
            body_left_bytes: u64_at(input, 40)?,
        })
    }
}

fn zeros(bytes: &[u8]) -> Result<(), DecodeError> {
    match bytes.iter().find(|&&byte| byte != 0) {
        None => Ok(()),
        Some(&value) => Err(DecodeError::Undefined { what: "reserved", value: value.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_understood_is_written_the_same(bytes in any::<[[u8; 8]; 8]>(), kind in 0u8..8) {
            let mut input: [u8; 64] = bytes.concat().try_into().unwrap();
            input[8..12].copy_from_slice(&[kind, 0, kind & 1, 0]);
            let mut submission = input;
            submission[40..].fill(0);
            if let Ok(understood) = Submission::decode(&submission) {
                prop_assert_eq!(understood.encode(), submission);
            } else {
                prop_assert!(!(1..=5).contains(&kind));
            }
            let mut completion = input;
            completion[48..].fill(0);
            if let Ok(understood) = Completion::decode(&completion) {
                prop_assert_eq!(understood.encode(), completion);
            } else {
                prop_assert!(kind > 3);
            }
        }
    }

    #[test]
    fn what_must_be_zero_is() {
        let mut call = Submission {
            call: 1,
            operation: Operation::Call,
            more: true,
            epoch: 2,
            meta_offset: 3,
            meta_bytes: 4,
            body: Extent { first_slot: 5, bytes: 6 },
            token: 7,
        }
        .encode();
        assert!(Submission::decode(&call).is_ok());
        call[63] = 1;
        assert!(Submission::decode(&call).is_err());
    }
}
