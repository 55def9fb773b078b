//! CRC32C of chunks against that of the complete message.

use proptest::prelude::*;
use unlade_aead::crc32c::{self, Combine};

#[test]
fn the_check_value_is_right() {
    // RFC 3720 §B.4, and the check value of the catalogues.
    assert_eq!(crc32c::update(0, b"123456789"), 0xE306_9283);
    assert_eq!(crc32c::update(0, &[0; 32]), 0x8A91_36AA);
    assert_eq!(crc32c::update(0, &[0xFF; 32]), 0x62A8_AB43);
}

proptest! {
    #[test]
    fn pieces_add_up(data in prop::collection::vec(any::<u8>(), 0..5000), cut in any::<usize>()) {
        let (first, second) = data.split_at(cut % (data.len() + 1));
        let whole = crc32c::update(0, &data);
        let sums = (crc32c::update(0, first), crc32c::update(0, second));
        let bytes = second.len() as u64;
        prop_assert_eq!(crc32c::update(sums.0, second), whole);
        prop_assert_eq!(crc32c::combine(sums.0, sums.1, bytes), whole);
        let combine = Combine::new(bytes);
        prop_assert_eq!(combine.length_bytes(), bytes);
        prop_assert_eq!(combine.combine(sums.0, sums.1), whole);
    }
}
