//! AES-GCM of a message in chunks that the input chooses: every backend of the machine against the
//! portable one, which receives the message at once.

use unlade_aead::{Backend, Key, Progress};

/// The content of the first bytes: key length, additional data, positions of the cuts.
struct Script<'d> {
    key: Vec<u8>,
    nonce: [u8; 12],
    aad: &'d [u8],
    cuts: Vec<usize>,
    message: &'d [u8],
}

/// Parses two bytes of choices, up to 15 cuts, up to 31 bytes of additional data, the message.
fn script(data: &[u8]) -> Option<Script<'_>> {
    let (&choice, rest) = data.split_first()?;
    let (&aad_bytes, rest) = rest.split_first()?;
    let (cuts, rest) = rest.split_at_checked(usize::from(choice >> 4) * 2)?;
    let (aad, message) = rest.split_at_checked(usize::from(aad_bytes & 31))?;
    let mut cuts: Vec<usize> = cuts
        .chunks_exact(2)
        .map(|cut| usize::from(u16::from_be_bytes([cut[0], cut[1]])) % (message.len() + 1))
        .collect();
    cuts.extend([0, message.len()]);
    cuts.sort_unstable();
    let key = vec![choice; if choice & 1 == 0 { 16 } else { 32 }];
    Some(Script { key, nonce: [aad_bytes; 12], aad, cuts, message })
}

/// Chunks give the result of the whole: in order, from the middle, and combined.
pub fn aead_chunks(data: &[u8]) {
    let Some(script) = script(data) else { return };
    let key = |backend| Key::with_backend(&script.key, backend).expect("16 or 32 bytes");
    let portable = key(Backend::Portable);
    let mut at = portable.begin(&script.nonce, script.aad);
    let mut sealed = script.message.to_vec();
    portable.encrypt(&mut at, &mut sealed);
    let tag = portable.tag(&at);
    for backend in Backend::ALL.into_iter().filter(|backend| backend.is_supported()) {
        let key = key(backend);
        let mut at = key.begin(&script.nonce, script.aad);
        let mut joined = at;
        let mut opened = sealed.clone();
        for pair in script.cuts.windows(2) {
            let range = pair[0]..pair[1];
            let mut part = Progress::part(&script.nonce, range.start as u64);
            key.authenticate(&mut part, &sealed[range.clone()]);
            joined = key.combine(&joined, &part).expect("they are neighbours");
            key.decrypt(&mut at, &mut opened[range.clone()]);
            let mut alone = sealed[range.clone()].to_vec();
            key.keystream(&script.nonce, range.start as u64, &mut alone);
            assert_eq!(alone, script.message[range]);
        }
        assert_eq!(opened, script.message);
        assert_eq!(key.tag(&at), tag);
        assert_eq!(key.tag(&joined), tag);
    }
}
