//! `function_durations_percentiles.anon.dNN.csv`: durations of a function's invocations in a day.

use crate::lines::{Reader, Row, TraceError};

/// Percentiles of the averages in a file.
pub const PERCENTILES: [u8; 7] = [0, 1, 25, 50, 75, 99, 100];

/// Durations of one function, in milliseconds, without cold starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Durations {
    /// Owner of the application.
    pub owner: String,
    /// The application.
    pub app: String,
    /// The function, within its application.
    pub function: String,
    /// Average of all invocations.
    pub average_ms: f64,
    /// Number of invocations.
    pub count: u64,
    /// Minimum.
    pub minimum_ms: f64,
    /// Maximum.
    pub maximum_ms: f64,
    /// [`PERCENTILES`] of the averages over half minutes.
    pub percentiles_ms: [f64; 7],
}

impl Row for Durations {
    const COLUMNS: &'static [&'static str] = &[
        "HashOwner",
        "HashApp",
        "HashFunction",
        "Average",
        "Count",
        "Minimum",
        "Maximum",
        "percentile_Average_0",
        "percentile_Average_1",
        "percentile_Average_25",
        "percentile_Average_50",
        "percentile_Average_75",
        "percentile_Average_99",
        "percentile_Average_100",
    ];

    fn read(reader: &mut Reader<'_, '_>) -> Result<Durations, TraceError> {
        let mut row = Durations {
            owner: reader.name()?,
            app: reader.name()?,
            function: reader.name()?,
            average_ms: reader.amount()?,
            count: reader.count()?,
            minimum_ms: reader.amount()?,
            maximum_ms: reader.amount()?,
            percentiles_ms: [0.0; 7],
        };
        for percentile in &mut row.percentiles_ms {
            *percentile = reader.amount()?;
        }
        Ok(row)
    }

    fn write(&self, out: &mut String) {
        let Durations { owner, app, function, average_ms, count, .. } = self;
        out.push_str(&format!("{owner},{app},{function},{average_ms},{count}"));
        for amount in [self.minimum_ms, self.maximum_ms].iter().chain(&self.percentiles_ms) {
            out.push_str(&format!(",{amount}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::{Rows, write};

    #[test]
    fn durations_are_in_milliseconds() {
        let header = Durations::COLUMNS.join(",");
        let text = format!("{header}\no,a,f,12.5,300,1,250,1,2,8,11,15,90,200\n");
        let rows: Vec<Durations> =
            Rows::of(text.as_bytes()).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!((rows[0].average_ms, rows[0].count, rows[0].maximum_ms), (12.5, 300, 250.0));
        assert_eq!(rows[0].percentiles_ms[3], 11.0);
        assert_eq!(write(&rows), text);
    }
}
