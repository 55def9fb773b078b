//! CRC32C (Castagnoli; RFC 3720 §12.1) of messages that arrive in chunks, in any order.

use crc_fast::{CrcAlgorithm, Digest};

/// The polynomial, bits reflected: the coefficient of x^31 is bit 0.
const POLYNOMIAL: u32 = 0x82F6_3B78;
/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// Extends the checksum `crc` by `data`. The checksum of no bytes is 0.
pub fn update(crc: u32, data: &[u8]) -> u32 {
    // The library stores the complement.
    let state = u64::from(!crc);
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, state);
    digest.update(data);
    digest.finalize() as u32
}

/// Precomputed tables that prepend a checksum to chunks of one length.
pub struct Combine {
    /// Products of each four-bit value with x to the power of the length in bits.
    tables: [[u32; 16]; 8],
    length_bytes: u64,
}

impl Combine {
    /// Tables for second chunks of `length_bytes`.
    pub fn new(length_bytes: u64) -> Combine {
        let shift = power_of_x(length_bytes);
        let mut tables = [[0; 16]; 8];
        for (group, table) in tables.iter_mut().enumerate() {
            for (value, product) in table.iter_mut().enumerate() {
                *product = multiply((value as u32) << (4 * group), shift);
            }
        }
        Combine { tables, length_bytes }
    }

    /// Length of the second chunk.
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// The checksum of a chunk with checksum `first`, followed by one with checksum `second`.
    pub fn combine(&self, first: u32, second: u32) -> u32 {
        let groups = self.tables.iter().enumerate();
        groups.fold(second, |sum, (group, table)| sum ^ table[(first >> (4 * group) & 15) as usize])
    }
}

/// The checksum of a chunk with checksum `first`, followed by one of `second_bytes` with checksum
/// `second`. For frequent use with one length, [`Combine`] is faster.
pub fn combine(first: u32, second: u32, second_bytes: u64) -> u32 {
    multiply(first, power_of_x(second_bytes)) ^ second
}

/// x to the power of 8 times `bytes`, modulo the polynomial.
fn power_of_x(bytes: u64) -> u32 {
    let mut square = ONE >> 8;
    let mut power = ONE;
    let mut rest = bytes;
    while rest > 0 {
        if rest & 1 == 1 {
            power = multiply(power, square);
        }
        square = multiply(square, square);
        rest >>= 1;
    }
    power
}

/// The product of two polynomials, modulo the polynomial.
const fn multiply(left: u32, right: u32) -> u32 {
    let (mut product, mut right) = (0, right);
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= right & (left >> bit & 1).wrapping_neg();
        right = right >> 1 ^ POLYNOMIAL & (right & 1).wrapping_neg();
    }
    product
}
