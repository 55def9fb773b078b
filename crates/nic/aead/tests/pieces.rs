//! Every backend against the portable one-shot result: random records in random chunks, combined
//! parts, offsets near the data limit of a nonce.

use proptest::prelude::*;
use unlade_aead::{Backend, DATA_BYTES_MAX, Key, KeyError, NotNeighbours, Progress};

/// Bytes around a chunk that must not change.
const MARGIN: usize = 96;

fn supported() -> impl Iterator<Item = Backend> {
    Backend::ALL.into_iter().filter(|backend| backend.is_supported())
}

/// A message.
#[derive(Clone, Debug)]
struct Message {
    key: Vec<u8>,
    nonce: [u8; 12],
    aad: Vec<u8>,
    plain: Vec<u8>,
}

impl Message {
    fn key(&self, backend: Backend) -> Key {
        Key::with_backend(&self.key, backend).expect("supported, and of a length that there is")
    }

    /// The result of sealing in one call, by the portable backend.
    fn sealed(&self) -> (Vec<u8>, [u8; 16]) {
        let key = self.key(Backend::Portable);
        let mut at = key.begin(&self.nonce, &self.aad);
        let mut sealed = self.plain.clone();
        key.encrypt(&mut at, &mut sealed);
        (sealed, key.tag(&at).0)
    }
}

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    (0..=max, any::<u64>()).prop_map(|(length, seed)| noise(length, seed))
}

/// Pseudorandom bytes.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let step = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*state >> 56) as u8
    };
    (0..length).map(|_| step(&mut state)).collect()
}

fn message(max: usize) -> impl Strategy<Value = Message> {
    let key = (prop_oneof![Just(16), Just(32)], any::<u64>())
        .prop_map(|(length, seed)| noise(length, seed));
    let aad = prop_oneof![Just(5), Just(13), 0_usize..80].prop_map(|length| noise(length, 3));
    (key, any::<[u8; 12]>(), aad, bytes(max)).prop_map(|(key, nonce, aad, plain)| Message {
        key,
        nonce,
        aad,
        plain,
    })
}

/// Ordered ranges of `length` bytes, cut at `places`; a place may occur twice.
fn cuts(places: &[usize], length: usize) -> Vec<std::ops::Range<usize>> {
    let mut places: Vec<usize> = places.iter().map(|place| place % (length + 1)).collect();
    places.extend([0, length]);
    places.sort_unstable();
    places.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// Calls `f` with a copy of `data` between margins, checks the margins, and returns the result.
fn within_margins(data: &[u8], shift: usize, f: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let begin = MARGIN + shift % 64;
    let mut room = vec![0xA5; begin + data.len() + MARGIN];
    room[begin..begin + data.len()].copy_from_slice(data);
    f(&mut room[begin..begin + data.len()]);
    assert!(room[..begin].iter().all(|&byte| byte == 0xA5), "wrote before the piece");
    assert!(room[begin + data.len()..].iter().all(|&byte| byte == 0xA5), "wrote behind the piece");
    room[begin..begin + data.len()].to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// In any chunks, in place or not, the result equals that of one call.
    #[test]
    fn any_pieces_are_the_same_as_one(
        message in message(9000),
        places in prop::collection::vec(any::<usize>(), 0..12),
        shift in 0_usize..64,
    ) {
        let (sealed, tag) = message.sealed();
        for backend in supported() {
            let key = message.key(backend);
            let mut sealing = [key.begin(&message.nonce, &message.aad); 2];
            let mut opening = [sealing[0]; 3];
            for cut in cuts(&places, sealed.len()) {
                let (plain, sealed) = (&message.plain[cut.clone()], &sealed[cut]);
                let got = within_margins(plain, shift, |data| key.encrypt(&mut sealing[0], data));
                prop_assert!(got == sealed, "{backend:?}: encrypt");
                let got = within_margins(&vec![0; plain.len()], shift, |to| {
                    key.encrypt_to(&mut sealing[1], plain, to);
                });
                prop_assert!(got == sealed, "{backend:?}: encrypt_to");
                let got = within_margins(sealed, shift, |data| key.decrypt(&mut opening[0], data));
                prop_assert!(got == plain, "{backend:?}: decrypt");
                let got = within_margins(&vec![0; plain.len()], shift, |to| {
                    key.decrypt_to(&mut opening[1], sealed, to);
                });
                prop_assert!(got == plain, "{backend:?}: decrypt_to");
                let offset = opening[2].offset();
                key.authenticate(&mut opening[2], sealed);
                let got = within_margins(sealed, shift, |data| {
                    key.keystream(&message.nonce, offset, data);
                });
                prop_assert!(got == plain, "{backend:?}: keystream");
            }
            for at in sealing.iter().chain(&opening) {
                prop_assert_eq!(at.offset(), sealed.len() as u64);
                prop_assert_eq!(key.tag(at).0, tag, "{:?}", backend);
                prop_assert_eq!(key.verify(at, &tag), Ok(()), "{:?}", backend);
            }
        }
    }

    /// A change of any one bit of the message is detected.
    #[test]
    fn a_changed_bit_is_found(message in message(600), place in any::<usize>(), bit in 0..8_u32) {
        let (mut sealed, mut tag) = message.sealed();
        let mut aad = message.aad.clone();
        let total = aad.len() + sealed.len() + tag.len();
        let place = place % total;
        let byte = aad.iter_mut().chain(&mut sealed).chain(&mut tag).nth(place);
        *byte.expect("within") ^= 1_u8 << bit;
        for backend in supported() {
            let key = message.key(backend);
            let mut at = key.begin(&message.nonce, &aad);
            key.authenticate(&mut at, &sealed);
            prop_assert!(key.verify(&at, &tag).is_err(), "{:?}", backend);
        }
    }

    /// A copy continues independently, also on another backend, and parts combine in any order.
    #[test]
    fn parts_are_copied_and_combined(
        message in message(3000),
        places in prop::collection::vec(any::<usize>(), 1..5),
        from_the_right in any::<bool>(),
    ) {
        let (sealed, tag) = message.sealed();
        for backend in supported() {
            let key = message.key(backend);
            let begun = key.begin(&message.nonce, &message.aad);
            let mut parts: Vec<Progress> = vec![begun];
            for cut in cuts(&places, sealed.len()) {
                let mut part = Progress::part(&message.nonce, cut.start as u64);
                let got = within_margins(&message.plain[cut.clone()], 0, |data| {
                    key.encrypt(&mut part, data);
                });
                prop_assert!(got == sealed[cut.clone()], "{backend:?}: a part");
                prop_assert_eq!((part.start(), part.offset()), (cut.start as u64, cut.end as u64));
                parts.push(part);

                let mut copy = parts[0];
                key.authenticate(&mut copy, &sealed[..cut.start]);
                let other = message.key(Backend::Portable);
                other.authenticate(&mut copy, &sealed[cut.start..]);
                prop_assert_eq!(key.tag(&copy).0, tag, "{:?}: a copy", backend);
            }
            while parts.len() > 1 {
                let at = if from_the_right { parts.len() - 2 } else { 0 };
                let both = key.combine(&parts[at], &parts[at + 1]).expect("neighbours");
                parts.splice(at..at + 2, [both]);
            }
            prop_assert_eq!(key.tag(&parts[0]).0, tag, "{:?}: combined", backend);
        }
    }

    /// Any offset, up to the last byte under a nonce.
    #[test]
    fn any_offset_can_be_sought(message in message(700), offset in 0..DATA_BYTES_MAX - 700) {
        for offset in [offset, DATA_BYTES_MAX - message.plain.len() as u64] {
            let mut wanted = None;
            for backend in supported() {
                let key = message.key(backend);
                let mut at = Progress::part(&message.nonce, offset);
                let mut sealed = message.plain.clone();
                key.encrypt(&mut at, &mut sealed);
                // One byte at a time, each with its own offset.
                let mut bytes = message.plain.clone();
                for (index, byte) in bytes.iter_mut().enumerate() {
                    let one = std::slice::from_mut(byte);
                    key.keystream(&message.nonce, offset + index as u64, one);
                }
                prop_assert!(bytes == sealed, "{backend:?} at {offset}");
                let wanted = wanted.get_or_insert_with(|| sealed.clone());
                prop_assert!(*wanted == sealed, "{backend:?} at {offset}");
            }
        }
    }
}

/// Long chunks use larger batches, with smaller ones around them.
#[test]
fn lengths_around_those_of_batches_are_the_same_as_with_the_portable_backend() {
    for key_bytes in [16, 32] {
        let make = |backend| Key::with_backend(&noise(key_bytes, 5), backend).unwrap();
        let oracle = make(Backend::Portable);
        for bytes in [2047, 2048, 2049, 2303, 2304, 2560, 2561, 4095, 4608, 5000, 16_385] {
            for skip in [0, 1, 15, 16, 255, 256, 300] {
                let plain = noise(skip + bytes, bytes as u64);
                let sealed = |key: &Key| {
                    let mut at = key.begin(&[3; 12], b"header");
                    let mut sealed = vec![0; skip + bytes];
                    key.encrypt_to(&mut at, &plain[..skip], &mut sealed[..skip]);
                    key.encrypt_to(&mut at, &plain[skip..], &mut sealed[skip..]);
                    (sealed, key.tag(&at))
                };
                let (wanted, tag) = sealed(&oracle);
                for backend in supported() {
                    let key = make(backend);
                    let case = (backend, key_bytes, skip, bytes);
                    assert_eq!(sealed(&key), (wanted.clone(), tag), "{case:?}");
                    let (mut opened, mut seen) = (wanted.clone(), key.begin(&[3; 12], b"header"));
                    let mut at = seen;
                    key.decrypt(&mut at, &mut opened[..skip]);
                    key.decrypt(&mut at, &mut opened[skip..]);
                    assert_eq!((&opened, key.tag(&at)), (&plain, tag), "{case:?}");
                    key.authenticate(&mut seen, &wanted);
                    assert_eq!(key.tag(&seen), tag, "{case:?}");
                    key.keystream(&[3; 12], 0, &mut opened);
                    assert_eq!(opened, wanted, "{case:?}");
                }
            }
        }
    }
}

#[test]
fn the_first_bytes_after_the_limit_are_refused() {
    for backend in supported() {
        let key = Key::with_backend(&[7; 16], backend).expect("supported");
        let past = std::panic::catch_unwind(|| {
            key.keystream(&[0; 12], DATA_BYTES_MAX - 20, &mut [0; 21]);
        });
        assert!(past.is_err(), "{backend:?}: the counter of the tag would be used again");
        key.keystream(&[0; 12], DATA_BYTES_MAX - 20, &mut [0; 20]);
    }
}

#[test]
fn nothing_at_all_has_a_tag() {
    for key_bytes in [16, 32] {
        let message =
            Message { key: vec![1; key_bytes], nonce: [2; 12], aad: vec![], plain: vec![] };
        let (_, tag) = message.sealed();
        for backend in supported() {
            let key = message.key(backend);
            let mut at = key.begin(&message.nonce, &[]);
            key.encrypt(&mut at, &mut []);
            assert_eq!(key.tag(&at).0, tag, "{backend:?}");
            assert_eq!(key.verify(&at, &[0; 16]), Err(unlade_aead::Forged), "{backend:?}");
        }
    }
}

#[test]
fn what_are_no_neighbours_is_refused() {
    let key = Key::new(&[3; 32]).expect("a length that there is");
    let (first, second) = (Progress::part(&[0; 12], 5), Progress::part(&[0; 12], 6));
    assert_eq!(key.combine(&first, &second).unwrap_err(), NotNeighbours);
    let (first, second) = (Progress::part(&[0; 12], 5), Progress::part(&[1; 12], 5));
    assert_eq!(key.combine(&first, &second).unwrap_err(), NotNeighbours);
    let begun = key.begin(&[0; 12], &[]);
    assert_eq!(key.combine(&begun, &begun).unwrap_err(), NotNeighbours);
}

#[test]
fn keys_of_other_lengths_are_refused_and_none_is_printed() {
    for length in [0, 15, 17, 24, 31, 33] {
        assert_eq!(Key::new(&vec![0; length]).unwrap_err(), KeyError::Length(length));
    }
    let key = Key::new(&[0xAB; 16]).expect("a length that there is");
    let at = key.begin(&[0; 12], &[1]);
    assert_eq!(format!("{key:?}"), format!("Key {{ backend: {:?}, .. }}", key.backend()));
    assert_eq!(format!("{at:?}"), "Progress { start: 0, offset: 0, whole: true, .. }");
    for backend in Backend::ALL.into_iter().filter(|backend| !backend.is_supported()) {
        let refused = Key::with_backend(&[0; 16], backend).unwrap_err();
        assert_eq!(refused, KeyError::Unsupported(backend));
    }
}
