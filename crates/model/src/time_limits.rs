//! Time limits of a task: one list defines keys, bounds and defaults for every file, message and policy.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::{Class, Nanos};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const ALL: bool = false;
const LC: bool = true;

/// Appends one optional field per time limit to a struct of a file or message: `struct NAME: TYPE { .. }`, with
/// the type of a value as typed. The struct implements [`TypedTimes`](crate::TypedTimes).
///
/// Why a macro: `#[serde(flatten)]` loses the lines of values, which messages name.
#[macro_export]
macro_rules! with_time_limits {
    (@list $then:ident $args:tt) => {
        // Field of `TimeLimits`, key, unit in nanoseconds, bounds and default in that unit, classes that have it.
        $crate::with_time_limits! { @$then $args
            /// Queueing delay from which the task counts as congested (Caladan, `qdelay_us`).
            delay_target, delay_target_us, US, 1..=10_000_000, 10, ALL;
            /// LC: how long a thread may run without sleeping before it counts as a runaway; zero: for ever.
            runaway_after, runaway_ms, MS, 0..=3_600_000, 1_000, LC;
            /// LC: how long a request may take before the siblings of its core are idled until it ends (Caladan,
            /// `ht_punish_us`); zero: for ever.
            sibling_idle_after, sibling_idle_after_us, US, 0..=10_000_000, 0, LC;
            /// How long a request may run while others of the task wait (Caladan, `quantum_us`); zero: for ever.
            quantum, quantum_us, US, 0..=10_000_000, 100, ALL;
        }
    };
    (@define {} $(
        $(#[$doc:meta])*
        $field:ident, $key:ident, $unit:ident, $range:expr, $default:literal, $lc_only:ident;
    )*) => {
        /// Time limits of a task, as policies use them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct TimeLimits {
            $($(#[$doc])* pub $field: Nanos,)*
        }

        impl TimeLimits {
            /// The keys, in the order of the fields.
            pub const KEYS: [TimeKey; [$(stringify!($key)),*].len()] = [$(TimeKey {
                name: stringify!($key),
                unit_ns: $unit,
                range: $range,
                default: $default,
                lc_only: $lc_only,
            }),*];
            /// No bound and no target.
            pub const ZERO: TimeLimits = TimeLimits { $($field: Nanos::ZERO),* };

            const fn from_array(times: [Nanos; Self::KEYS.len()]) -> TimeLimits {
                let [$($field),*] = times;
                TimeLimits { $($field),* }
            }

            /// The limits, in the order of [`TimeLimits::KEYS`].
            pub const fn to_array(self) -> [Nanos; Self::KEYS.len()] {
                [$(self.$field),*]
            }
        }
    };
    (@extend {
        $(#[$meta:meta])*
        $vis:vis struct $name:ident: $typed:ty { $($own:tt)* }
    } $(
        $(#[$doc:meta])*
        $field:ident, $key:ident, $unit:ident, $range:expr, $default:literal, $lc_only:ident;
    )*) => {
        $(#[$meta])*
        $vis struct $name {
            $($own)*
            $($(#[$doc])* $vis $key: Option<$typed>,)*
        }

        impl $crate::TypedTimes for $name {
            type Typed = $typed;

            fn typed(&self) -> [Option<&$typed>; $crate::TimeLimits::KEYS.len()] {
                [$(self.$key.as_ref()),*]
            }

            fn typed_mut(&mut self) -> [&mut Option<$typed>; $crate::TimeLimits::KEYS.len()] {
                [$(&mut self.$key),*]
            }
        }
    };
    ($($typed:tt)*) => {
        $crate::with_time_limits! { @list extend { $($typed)* } }
    };
}

/// How a time limit is typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeKey {
    /// The key in files and messages; its end names the unit.
    pub name: &'static str,
    /// The unit, in nanoseconds.
    pub unit_ns: u64,
    /// The values that are accepted, in the unit.
    pub range: RangeInclusive<u64>,
    /// The value of a task that does not say, in the unit.
    pub default: u64,
    /// Whether it is zero for BE tasks, whatever was typed.
    pub lc_only: bool,
}

with_time_limits! { @list define {} }

/// A struct with one optional value per time limit, made by [`with_time_limits!`].
pub trait TypedTimes {
    /// A value as typed.
    type Typed;

    /// The values, in the order of [`TimeLimits::KEYS`].
    fn typed(&self) -> [Option<&Self::Typed>; TimeLimits::KEYS.len()];

    /// The values to set, in the order of [`TimeLimits::KEYS`].
    fn typed_mut(&mut self) -> [&mut Option<Self::Typed>; TimeLimits::KEYS.len()];
}

impl TimeLimits {
    /// The limits as typed, with defaults for those left out; zero for those that tasks of `class` do not have.
    /// `value` checks a typed value against the range of its key.
    ///
    /// # Errors
    /// The first that `value` returns.
    pub fn read<T: TypedTimes, E>(
        typed: &T,
        class: Class,
        mut value: impl FnMut(&TimeKey, &T::Typed) -> Result<u64, E>,
    ) -> Result<TimeLimits, E> {
        let mut times = [Nanos::ZERO; Self::KEYS.len()];
        for ((key, typed), time) in Self::KEYS.iter().zip(typed.typed()).zip(&mut times) {
            let value = typed.map_or(Ok(key.default), |typed| value(key, typed))?;
            debug_assert!(key.range.contains(&value), "{} = {value}", key.name);
            if class == Class::LatencyCritical || !key.lc_only {
                *time = Nanos(value * key.unit_ns);
            }
        }
        Ok(TimeLimits::from_array(times))
    }
}

impl Default for TimeLimits {
    /// The limits of an LC task whose file has none of the keys.
    fn default() -> TimeLimits {
        TimeLimits::from_array(Self::KEYS.map(|key| Nanos(key.default * key.unit_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    with_time_limits! {
        #[derive(Default)]
        struct Typed: u64 {}
    }

    fn read(typed: &Typed, class: Class) -> Result<TimeLimits, &'static str> {
        TimeLimits::read(typed, class, |key, value| {
            if key.range.contains(value) { Ok(*value) } else { Err(key.name) }
        })
    }

    #[test]
    fn defaults_are_within_bounds_and_hold_for_values_left_out() {
        for key in &TimeLimits::KEYS {
            assert!(key.range.contains(&key.default), "{}", key.name);
            assert!(key.range.end().checked_mul(key.unit_ns).is_some(), "{}", key.name);
        }
        let lc = read(&Typed::default(), Class::LatencyCritical).unwrap();
        assert_eq!(lc, TimeLimits::default());
        assert_eq!(lc.quantum, Nanos::from_micros(100));
    }

    #[test]
    fn typed_values_replace_defaults_and_errors_pass_through() {
        let typed = Typed { runaway_ms: Some(7), quantum_us: Some(0), ..Typed::default() };
        let lc = read(&typed, Class::LatencyCritical).unwrap();
        assert_eq!((lc.runaway_after, lc.quantum), (Nanos::from_millis(7), Nanos::ZERO));
        assert_eq!(read(&typed, Class::BestEffort).unwrap().runaway_after, Nanos::ZERO);
        let wrong = Typed { delay_target_us: Some(0), ..Typed::default() };
        assert_eq!(read(&wrong, Class::LatencyCritical), Err("delay_target_us"));
    }

    #[test]
    fn each_value_is_read_into_the_field_of_its_key() {
        for at in 0..TimeLimits::KEYS.len() {
            let mut typed = Typed::default();
            *typed.typed_mut()[at] = Some(3);
            let mut expected = TimeLimits::default().to_array();
            expected[at] = Nanos(3 * TimeLimits::KEYS[at].unit_ns);
            let read = read(&typed, Class::LatencyCritical).unwrap();
            assert_eq!(read.to_array(), expected, "{}", TimeLimits::KEYS[at].name);
        }
    }
}
