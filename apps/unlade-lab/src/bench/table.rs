//! Tables for readers: a row for each figure of a case, a column for each mode.

use super::figures::Figures;

const NAME_CHARS: usize = 24;
const CELL_CHARS: usize = 15;

/// The line above the rows.
pub fn header(modes: &[String]) -> String {
    let cells: String = modes.iter().map(|mode| format!("{mode:>CELL_CHARS$}")).collect();
    format!("{:<NAME_CHARS$}{cells}", "")
}

/// The table row of one case.
pub fn rows(name: &str, figures: &[Figures]) -> Vec<String> {
    let row = |what: &str, figure: &dyn Fn(&Figures) -> String| {
        let cells: String =
            figures.iter().map(|figures| format!("{:>CELL_CHARS$}", figure(figures))).collect();
        format!("{:<NAME_CHARS$}{cells}", format!("{name} {what}"))
    };
    let mut rows = vec![
        row("MiB/s", &|f| short(f.throughput_bytes_per_s / 1_048_576.0)),
        row("lb CPU ms/GiB", &|f| short(f.lb_cpu_ns_per_gib / 1e6)),
        row("p50 ms", &|f| latency(f.latency_p50_us)),
        row("p99 ms", &|f| latency(f.latency_p99_us)),
        row("first byte p99 ms", &|f| latency(f.first_byte_p99_us)),
        row("machine busy %", &|f| short(f.machine_busy_ratio * 100.0)),
    ];
    if figures.iter().any(|figures| figures.errors > 0.0) {
        rows.push(row("errors", &|f| format!("{}", f.errors)));
    }
    rows
}

fn latency(us: Option<f64>) -> String {
    us.map_or_else(|| "-".to_owned(), |us| short(us / 1e3))
}

/// Three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::window::Sample;
    use super::*;

    #[test]
    fn columns_stand_below_their_heads() {
        let head = header(&["offload".to_owned(), "nginx".to_owned()]);
        let sample = Sample { throughput_bytes_per_s: 1_048_576.0 * 250.0, ..Sample::default() };
        let figures = Figures::of(&[sample]);
        let rows = rows("1MiB", &[figures.clone(), figures]);
        assert!(rows.iter().all(|row| row.chars().count() == head.chars().count()), "{rows:?}");
        assert!(rows[0].contains("250"));
        let failed = Figures::of(&[Sample { errors: 2.0, ..Sample::default() }]);
        assert!(super::rows("x", &[failed]).last().unwrap().contains("errors"));
    }

    #[test]
    fn three_digits() {
        assert_eq!(
            [short(1234.5), short(12.34), short(1.234), short(0.1234)],
            ["1234", "12.3", "1.23", "0.123"]
        );
    }
}
