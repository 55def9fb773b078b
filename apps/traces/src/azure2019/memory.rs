//! `app_memory_percentiles.anon.dNN.csv`: allocated memory of an application in a day.

use crate::lines::{Reader, Row, TraceError};

/// Percentiles of the averages in a file.
pub const PERCENTILES: [u8; 8] = [1, 5, 25, 50, 75, 95, 99, 100];

/// Memory of one application, in MiB as in the data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// Owner of the application.
    pub owner: String,
    /// The application.
    pub app: String,
    /// Number of samples.
    pub samples: u64,
    /// Average of all samples.
    pub average_mib: f64,
    /// [`PERCENTILES`] of the averages over minutes.
    pub percentiles_mib: [f64; 8],
}

impl Row for Memory {
    const COLUMNS: &'static [&'static str] = &[
        "HashOwner",
        "HashApp",
        "SampleCount",
        "AverageAllocatedMb",
        "AverageAllocatedMb_pct1",
        "AverageAllocatedMb_pct5",
        "AverageAllocatedMb_pct25",
        "AverageAllocatedMb_pct50",
        "AverageAllocatedMb_pct75",
        "AverageAllocatedMb_pct95",
        "AverageAllocatedMb_pct99",
        "AverageAllocatedMb_pct100",
    ];

    fn read(reader: &mut Reader<'_, '_>) -> Result<Memory, TraceError> {
        let mut row = Memory {
            owner: reader.name()?,
            app: reader.name()?,
            samples: reader.count()?,
            average_mib: reader.amount()?,
            percentiles_mib: [0.0; 8],
        };
        for percentile in &mut row.percentiles_mib {
            *percentile = reader.amount()?;
        }
        Ok(row)
    }

    fn write(&self, out: &mut String) {
        let Memory { owner, app, samples, average_mib, .. } = self;
        out.push_str(&format!("{owner},{app},{samples},{average_mib}"));
        for amount in &self.percentiles_mib {
            out.push_str(&format!(",{amount}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::{Rows, write};

    #[test]
    fn memory_is_an_applications() {
        let header = Memory::COLUMNS.join(",");
        let text = format!("{header}\no,a,17,120.5,90,91,100,120,130,140,150,160.25\n");
        let rows: Vec<Memory> =
            Rows::of(text.as_bytes()).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!((rows[0].samples, rows[0].average_mib), (17, 120.5));
        assert_eq!(rows[0].percentiles_mib[7], 160.25);
        assert_eq!(write(&rows), text);
    }
}
