//! The Azure Functions trace of 2021, as described with its data set: one row for each invocation
//! of two weeks (`AzureFunctionsInvocationTraceForTwoWeeksJan2021.txt`).

use crate::lines::{Reader, Row, TraceError};

/// An invocation.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The application.
    pub app: String,
    /// The function, within its application.
    pub function: String,
    /// End, in seconds from the trace's start.
    pub end_s: f64,
    /// Duration in seconds.
    pub duration_s: f64,
}

impl Call {
    /// Returns the start, in seconds from the trace's start; negative if it was before that.
    pub fn start_s(&self) -> f64 {
        self.end_s - self.duration_s
    }
}

impl Row for Call {
    const COLUMNS: &'static [&'static str] = &["app", "func", "end_timestamp", "duration"];

    fn read(reader: &mut Reader<'_, '_>) -> Result<Call, TraceError> {
        Ok(Call {
            app: reader.name()?,
            function: reader.name()?,
            end_s: reader.amount()?,
            duration_s: reader.amount()?,
        })
    }

    fn write(&self, out: &mut String) {
        let Call { app, function, end_s, duration_s } = self;
        out.push_str(&format!("{app},{function},{end_s},{duration_s}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::{Rows, write};

    #[test]
    fn a_call_begins_before_it_ends() {
        let text = "app,func,end_timestamp,duration\n\
                    7b2c,e3ae,0.0790879726409912,0.078\n7b2c,01fb,11.25,0.5\n";
        let rows: Vec<Call> = Rows::of(text.as_bytes()).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!((rows[1].function.as_str(), rows[1].start_s()), ("01fb", 10.75));
        assert_eq!(write(&rows), text);
    }
}
