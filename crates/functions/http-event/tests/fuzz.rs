//! The fuzz targets of this crate over their seeds, each with one byte changed: without a fuzzer, and
//! without the other products that `xtask/tests/fuzz_seeds.rs` builds.

#[path = "../../../../tests/fuzz/src/http_event.rs"]
mod http_event;

#[test]
fn seeds_with_one_byte_changed_are_survived() {
    for (target, name, content) in http_event::seeds() {
        let run = match target {
            "http_event" => http_event::http_event,
            _ => http_event::function_result,
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
