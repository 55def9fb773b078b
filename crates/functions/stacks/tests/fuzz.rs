//! The fuzz targets of this crate over their seeds, each with one byte changed: without a fuzzer, and
//! without the other products that `xtask/tests/fuzz_seeds.rs` builds.

#[path = "../../../../tests/fuzz/src/stacks.rs"]
mod stacks;

use unlade_fn_stacks::query;

#[test]
fn seeds_with_one_byte_changed_are_survived() {
    for (target, name, content) in stacks::seeds() {
        let run = match target {
            "stack_template" => stacks::stack_template,
            _ => stacks::stack_request,
        };
        run(&content);
        for at in 0..content.len() {
            for change in [0x01, 0x08, 0x80] {
                let mut edited = content.clone();
                edited[at] ^= change;
                println!("{target}/{name}: byte {at} changed by {change:#x}");
                run(&edited);
            }
        }
    }
}

#[test]
fn seeds_are_accepted_except_the_wrong_ones() {
    for (target, name, content) in stacks::seeds() {
        if target == "stack_request" {
            assert_eq!(query::decode(&content).is_ok(), name != "member-twice", "{name}");
        }
    }
}
