//! Hostile files end in errors with positions.

use super::*;
use crate::azure2019::{Durations, Invocations, Memory};
use crate::azure2021::Call;
use unlade_testkit::cases;

const HEADER: &str = "HashOwner,HashApp,HashFunction,Trigger,1,2,3\n";

fn first<R: Row>(text: &[u8]) -> Result<Option<R>, String> {
    let mut rows = Rows::<R>::of(text).map_err(|error| error.to_string())?;
    rows.next().transpose().map_err(|error| error.to_string())
}

#[test]
fn a_wrong_row_is_told_by_its_line_and_field_and_the_next_one_follows() {
    let text = format!("{HEADER}o,a,f,http,1,x,3\no,a,f,http,1,2,3\r\no,a,f,http,1,2\n\n");
    let mut rows = Rows::<Invocations>::of(text.as_bytes()).unwrap();
    let wrong = rows.next().unwrap().unwrap_err();
    assert_eq!((wrong.line, wrong.field), (2, 6));
    assert_eq!(wrong.to_string(), "line 2, field 6: \"x\" is no whole number from 0 on");
    assert_eq!(rows.next().unwrap().unwrap().per_minute, [1, 2, 3]);
    let short = rows.next().unwrap().unwrap_err();
    assert_eq!(short.why, RowError::Fields { found: 6, due: 7 });
    assert_eq!(rows.next().unwrap().unwrap_err().line, 5, "an empty line is no row");
    assert!(rows.next().is_none());
}

#[test]
fn invalid_rows_are_refused() {
    for (line, why) in [
        ("o,a,f,http,1,2,3,4", "8 fields instead of 7"),
        ("o,a,f,cron,1,2,3", "no trigger"),
        (",a,f,http,1,2,3", "identifier"),
        ("o,a,f,http,-1,2,3", "whole number"),
        ("o,a,f,http,+1,2,3", "whole number"),
        ("o,a,f,http,4294967296,2,3", "whole number"),
        ("o,a,f,http,1, 2,3", "whole number"),
        ("o", "1 fields instead of 7"),
    ] {
        let told = first::<Invocations>(format!("{HEADER}{line}\n").as_bytes()).unwrap_err();
        assert!(told.starts_with("line 2") && told.contains(why), "{line}: {told}");
    }
    let header = Call::COLUMNS.join(",");
    for amount in ["inf", "NaN", "-0.1", "1e999", "", "0x1"] {
        let told = first::<Call>(format!("{header}\na,f,1,{amount}").as_bytes()).unwrap_err();
        assert!(told.contains("no finite number"), "{amount}: {told}");
    }
}

#[test]
fn a_wrong_header_is_reported() {
    for (text, why) in [
        ("", "empty"),
        ("HashOwner,HashApp\n", "2 fields instead of 4"),
        ("app,func,end_timestamp,duration\n", "should be \"HashOwner\""),
        ("HashOwner,HashApp,HashFunction,Trigger,1,3\n", "should be \"2\""),
    ] {
        let told = first::<Invocations>(text.as_bytes()).unwrap_err();
        assert!(told.starts_with("line 1") && told.contains(why), "{text}: {told}");
    }
    let many = (1..=1441).map(|n| format!(",{n}")).collect::<String>();
    let text = format!("HashOwner,HashApp,HashFunction,Trigger{many}\n");
    assert!(first::<Invocations>(text.as_bytes()).unwrap_err().contains("the last"));
}

#[test]
fn lines_that_are_too_long_or_no_text_end_or_are_skipped() {
    let long = format!("{HEADER}{}", "x".repeat(LINE_BYTES_MAX + 1));
    let mut rows = Rows::<Invocations>::of(long.as_bytes()).unwrap();
    assert_eq!(rows.next().unwrap().unwrap_err().why, RowError::Long);
    assert!(rows.next().is_none());
    let mut text = HEADER.as_bytes().to_vec();
    text.extend_from_slice(b"\xff\xfe\no,a,f,timer,0,0,1");
    let mut rows = Rows::<Invocations>::of(&text).unwrap();
    assert_eq!(rows.next().unwrap().unwrap_err().why, RowError::Text);
    assert_eq!(rows.next().unwrap().unwrap().total(), 1);
}

/// All rows that can be read can be written, and the result reads the same.
fn again<R: Row + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Ok(rows) = Rows::<R>::of(bytes) else { return };
    let rows: Vec<R> = rows.filter_map(Result::ok).collect();
    let text = write(&rows);
    let read: Result<Vec<R>, _> = Rows::<R>::of(text.as_bytes()).unwrap().collect();
    if !rows.is_empty() {
        assert_eq!(read.unwrap(), rows);
    }
}

#[test]
fn spoilt_files_are_survived() {
    let plan = crate::synthetic::Plan { functions: 4, minutes: 20, ..Default::default() };
    let made = plan.make().unwrap();
    let files = [
        write(&made.invocations()),
        write(&made.durations()),
        write(&made.memory()),
        write(&made.calls().unwrap()),
    ];
    cases(400, |random| {
        let mut bytes = random.pick(&files).into_bytes();
        for _ in 0..1 + random.below(4u32) {
            let at = random.below(bytes.len());
            bytes[at] = random.pick(b"0,9.-\n\r\x00\xffaeE+\"1");
        }
        again::<Invocations>(&bytes);
        again::<Durations>(&bytes);
        again::<Memory>(&bytes);
        again::<Call>(&bytes);
    });
}
