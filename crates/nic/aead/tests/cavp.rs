//! NIST's vectors for AES-GCM (CAVP, gcmtestvectors), with nonces of 96 bits and tags of 128 bits:
//! the first four of every combination of lengths, and forgeries.

use std::collections::HashMap;

use unlade_aead::{Backend, Key};

/// One case: names before the equals sign, and the bytes after it.
type Case = HashMap<String, Vec<u8>>;

fn bytes(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Parses the cases of a file. `FAIL` is a name without bytes.
fn cases(text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in text.lines() {
        let (name, value) = line.split_once(" =").unwrap_or((line, ""));
        match name {
            "Count" => cases.push(Case::new()),
            "Key" | "IV" | "PT" | "AAD" | "CT" | "Tag" | "FAIL" => {
                let case = cases.last_mut().expect("a case begins with its number");
                case.insert(name.to_owned(), bytes(value.trim()));
            }
            _ => assert!(line.is_empty() || line.starts_with(['#', '[']), "{line}"),
        }
    }
    cases
}

/// Checks one case on one backend; returns true if it is a forgery.
fn check(case: &Case, backend: Backend) -> bool {
    let key = Key::with_backend(&case["Key"], backend).expect("128 or 256 bits");
    let nonce = case["IV"].as_slice().try_into().expect("96 bits");
    let tag = case["Tag"].as_slice().try_into().expect("128 bits");
    let mut data = case["CT"].clone();
    let mut at = key.begin(nonce, &case["AAD"]);
    key.decrypt(&mut at, &mut data);
    let Some(plain) = case.get("PT") else {
        assert!(case.contains_key("FAIL"), "{backend:?}: {case:02x?}");
        assert!(key.verify(&at, tag).is_err(), "{backend:?}: {case:02x?}");
        return true;
    };
    assert!(key.verify(&at, tag).is_ok(), "{backend:?}: {case:02x?}");
    assert_eq!(data, *plain, "{backend:?}: {case:02x?}");
    let mut at = key.begin(nonce, &case["AAD"]);
    key.encrypt(&mut at, &mut data);
    assert_eq!(data, case["CT"], "{backend:?}: {case:02x?}");
    assert_eq!(key.tag(&at).0, *tag, "{backend:?}: {case:02x?}");
    false
}

#[test]
fn nist_vectors_hold_on_every_backend() {
    let files = [
        include_str!("cavp/gcmEncryptExtIV128.rsp"),
        include_str!("cavp/gcmEncryptExtIV256.rsp"),
        include_str!("cavp/gcmDecrypt128.rsp"),
        include_str!("cavp/gcmDecrypt256.rsp"),
    ];
    let cases: Vec<Case> = files.into_iter().flat_map(cases).collect();
    assert_eq!(cases.len(), 400, "every case is read");
    for backend in Backend::ALL.into_iter().filter(|backend| backend.is_supported()) {
        let forged = cases.iter().filter(|case| check(case, backend)).count();
        assert!(forged >= 50, "{backend:?}: {forged} forged");
    }
}
