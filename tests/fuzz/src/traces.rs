//! Files of traces from any source.

use std::fmt::Debug;

use unlade_traces::arrivals::arrivals;
use unlade_traces::azure2019::{Durations, Invocations, Memory};
use unlade_traces::azure2021::Call;
use unlade_traces::lines::write;
use unlade_traces::{Row, Rows};

/// Most arrivals that a target generates.
const ARRIVALS_MAX: u64 = 10_000;

/// Parsed rows are written unchanged; an error names a line of the file.
pub fn trace_rows(data: &[u8]) {
    let lines = 1 + data.iter().filter(|byte| **byte == b'\n').count() as u64;
    let invocations: Vec<Invocations> = rows(data, lines);
    rows::<Durations>(data, lines);
    rows::<Memory>(data, lines);
    rows::<Call>(data, lines);
    let total = invocations.iter().map(Invocations::total).fold(0, u64::saturating_add);
    if total < ARRIVALS_MAX {
        let made = arrivals(&invocations, 0..usize::MAX, 1).expect("few");
        assert_eq!(made.len() as u64, total);
    }
}

fn rows<R: Row + PartialEq + Debug>(data: &[u8], lines: u64) -> Vec<R> {
    let found = match Rows::<R>::of(data) {
        Ok(found) => found,
        Err(error) => {
            assert_eq!(error.line, 1);
            return Vec::new();
        }
    };
    let mut read = Vec::new();
    for row in found {
        match row {
            Ok(row) => read.push(row),
            Err(error) => assert!(error.line > 1 && error.line <= lines, "{error}"),
        }
    }
    if !read.is_empty() {
        let text = write(&read);
        let again = Rows::<R>::of(text.as_bytes()).expect("a header that was written");
        assert_eq!(again.collect::<Result<Vec<R>, _>>().expect("rows that were written"), read);
    }
    read
}

/// Files of each kind.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let invocations = "HashOwner,HashApp,HashFunction,Trigger,1,2,3\n\
        o1,a1,f1,http,0,2,1\no1,a1,f2,timer,1,1,1\n";
    let durations = format!("{}\no1,a1,f1,12.5,3,1,90,1,1,8,11,15,80,90\n", header::<Durations>());
    let memory = format!("{}\no1,a1,17,120.5,90,91,100,120,130,140,150,160\n", header::<Memory>());
    let calls = format!("{}\na1,f1,0.5,0.25\r\na1,f2,11.125,3\r\n", header::<Call>());
    [
        ("invocations", invocations.to_owned()),
        ("durations", durations),
        ("memory", memory),
        ("calls", calls),
    ]
    .map(|(name, text)| ("trace_rows", name, text.into_bytes()))
    .to_vec()
}

fn header<R: Row>() -> String {
    R::COLUMNS.join(",")
}
