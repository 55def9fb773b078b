//! Little-endian numbers and padded text at fixed offsets of fixed-size arrays.

/// Reads a number of two bytes at `at`.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

/// Reads a number of four bytes at `at`.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

/// Reads a number of eight bytes at `at`.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

/// Reads the bytes at `at`. The caller guarantees the length.
pub(super) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Writes bytes at `at`.
pub(super) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Writes ASCII text at `at`, truncated or padded with spaces (NVMe Base §1.4.2).
pub(super) fn put_ascii(bytes: &mut [u8], at: usize, length: usize, text: &str) {
    let field = &mut bytes[at..at + length];
    field.fill(b' ');
    for (to, from) in field.iter_mut().zip(text.bytes().filter(|b| (0x20..0x7f).contains(b))) {
        *to = from;
    }
}

/// Reads ASCII text padded with spaces or zeroes; non-printable bytes become `?`.
pub(super) fn ascii_at(bytes: &[u8], at: usize, length: usize) -> String {
    let field = &bytes[at..at + length];
    let end = field.iter().position(|b| *b == 0).unwrap_or(length);
    let shown = |b: &u8| if (0x20..0x7f).contains(b) { char::from(*b) } else { '?' };
    let text: String = field[..end].iter().map(shown).collect();
    text.trim_end().to_owned()
}
