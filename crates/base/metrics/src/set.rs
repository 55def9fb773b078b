//! Sets of counters and gauges without labels, for processes that have no [`Meter`](crate::Meter).

use std::sync::atomic::{AtomicU64, Ordering};

/// Declares a set of counters and gauges without labels: a struct of atomics, to which any thread
/// may add, and a struct of the values that were read from it. A metric is a field, its type
/// (`counter` or `gauge`), the name of its family without the suffix of the type, and its help.
///
/// The struct of atomics implements `Default` and has the methods `read` (the values) and
/// `readings` (the values as [`Reading`](crate::Reading)s, in the order of the declaration). The
/// struct of values has `readings`, and `render` for a text of these metrics alone.
///
/// ```
/// unlade_metrics::metric_set! {
///     /// Counters of the shop.
///     pub struct Shop;
///     /// A reading of [`Shop`].
///     pub struct ShopCounts;
///
///     visitors: gauge, "shop_visitors", "Visitors now.";
///     sales: counter, "shop_sales", "Things sold.";
/// }
///
/// let shop = Shop::default();
/// shop.visitors.add(2);
/// shop.visitors.subtract(1);
/// shop.sales.add(3);
/// assert_eq!(shop.read(), ShopCounts { visitors: 1, sales: 3 });
/// assert!(shop.read().render().contains("\nshop_sales_total 3\n"));
/// ```
///
/// Without the first struct, only the struct of values is declared: for code that counts in plain
/// integers and publishes them.
#[macro_export]
macro_rules! metric_set {
    (@atomic counter) => { $crate::AtomicCounter };
    (@atomic gauge) => { $crate::AtomicGauge };
    (@reading counter) => { $crate::Reading::counter };
    (@reading gauge) => { $crate::Reading::gauge };
    (
        $(#[$set_doc:meta])* $set_vis:vis struct $Set:ident;
        $(#[$counts_doc:meta])* $counts_vis:vis struct $Counts:ident;
        $($field:ident: $kind:ident, $family:literal, $help:literal;)+
    ) => {
        $(#[$set_doc])*
        #[derive(Debug, Default)]
        $set_vis struct $Set {
            $(#[doc = $help] pub $field: $crate::metric_set!(@atomic $kind),)+
        }

        #[allow(dead_code, reason = "a set may use some of the methods only")]
        impl $Set {
            /// The current values; each is read separately, not all at one instant.
            pub fn read(&self) -> $Counts {
                $Counts { $($field: self.$field.get(),)+ }
            }

            /// The current values with their families, in the order of the declaration.
            pub fn readings(&self) -> impl Iterator<Item = $crate::Reading> + use<> {
                self.read().readings()
            }
        }

        // In debug builds, the text is recorded for a check of the tests. A gauge is zero again at
        // the end; its highest value is recorded.
        #[cfg(debug_assertions)]
        impl Drop for $Set {
            fn drop(&mut self) {
                $Counts { $($field: self.$field.highest(),)+ }.render();
            }
        }

        $crate::metric_set! {
            $(#[$counts_doc])* $counts_vis struct $Counts;
            $($field: $kind, $family, $help;)+
        }
    };
    (
        $(#[$doc:meta])* $vis:vis struct $Counts:ident;
        $($field:ident: $kind:ident, $family:literal, $help:literal;)+
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $Counts {
            $(#[doc = $help] pub $field: u64,)+
        }

        #[allow(dead_code, reason = "a set may use some of the methods only")]
        impl $Counts {
            /// The values with their families, in the order of the declaration.
            pub fn readings(&self) -> impl Iterator<Item = $crate::Reading> + use<> {
                [$($crate::metric_set!(@reading $kind)($family, $help, self.$field),)+].into_iter()
            }

            /// OpenMetrics text: every family, with its type and help.
            pub fn render(&self) -> String {
                let mut text = $crate::OpenMetrics::new();
                text.readings(self.readings());
                text.finish()
            }
        }
    };
}

/// A counter of a [`metric_set!`](crate::metric_set).
#[derive(Debug, Default)]
pub struct AtomicCounter(AtomicU64);

impl AtomicCounter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The current value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The highest value so far.
    #[cfg(debug_assertions)]
    pub fn highest(&self) -> u64 {
        self.get()
    }
}

/// A gauge of a [`metric_set!`](crate::metric_set).
#[derive(Debug, Default)]
pub struct AtomicGauge {
    value: AtomicU64,
    #[cfg(debug_assertions)]
    highest: AtomicU64,
}

impl AtomicGauge {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        let _before = self.value.fetch_add(n, Ordering::Relaxed);
        #[cfg(debug_assertions)]
        self.highest.fetch_max(_before.wrapping_add(n), Ordering::Relaxed);
    }

    /// Subtracts `n`, which was added before.
    #[inline]
    pub fn subtract(&self, n: u64) {
        self.value.fetch_sub(n, Ordering::Relaxed);
    }

    /// The current value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// The highest value so far.
    #[cfg(debug_assertions)]
    pub fn highest(&self) -> u64 {
        self.highest.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Kind, Reading};

    metric_set! {
        /// Counters.
        struct Set;
        /// A reading.
        struct Counts;

        open: gauge, "unlade_test_open", "Open things.";
        read_bytes: counter, "unlade_test_read_bytes", "Bytes read.";
    }

    metric_set! {
        /// Values without atomics.
        struct Plain;

        frames: counter, "unlade_test_frames", "Frames.";
    }

    #[test]
    fn readings_have_the_declared_names_and_the_values() {
        let set = Set::default();
        set.open.add(5);
        set.open.subtract(3);
        set.read_bytes.add(4);
        set.read_bytes.add(3);
        assert_eq!(set.read(), Counts { open: 2, read_bytes: 7 });
        let readings: Vec<Reading> = set.readings().collect();
        let expected = [
            Reading::gauge("unlade_test_open", "Open things.", 2),
            Reading::counter("unlade_test_read_bytes", "Bytes read.", 7),
        ];
        assert_eq!(readings, expected);
        assert_eq!((readings[0].kind, readings[1].kind), (Kind::Gauge, Kind::Counter));
    }

    #[test]
    fn a_reading_is_rendered_with_type_unit_and_help() {
        let text = Counts { open: 2, read_bytes: 7 }.render();
        let expected = "\n# TYPE unlade_test_open gauge\n\
                        # HELP unlade_test_open Open things.\n\
                        unlade_test_open 2\n\
                        # TYPE unlade_test_read_bytes counter\n\
                        # UNIT unlade_test_read_bytes bytes\n\
                        # HELP unlade_test_read_bytes Bytes read.\n\
                        unlade_test_read_bytes_total 7\n# EOF\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn values_without_atomics_are_a_set_too() {
        let plain = Plain { frames: 3 };
        let readings: Vec<Reading> = plain.readings().collect();
        assert_eq!(readings, [Reading::counter("unlade_test_frames", "Frames.", 3)]);
    }
}
