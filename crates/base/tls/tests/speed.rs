//! A short run of the benchmark, so that it keeps working.

#[allow(dead_code, reason = "its main is not called here")]
#[path = "../examples/seal_speed.rs"]
mod seal_speed;

#[test]
fn the_benchmark_measures_every_method() {
    let lines = seal_speed::measure(seal_speed::SUITES[0], 1, 2);
    assert_eq!(lines.len(), 6);
    for line in lines {
        assert!(line.starts_with("{\"bench\":\"record\",\"case\":{\"suite\":\"TLS13_AES_128_GCM"));
        assert!(!line.contains("NaN") && !line.contains("inf"));
    }
}
