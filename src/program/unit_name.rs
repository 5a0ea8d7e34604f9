//! The names of units in messages.

use std::fmt::Display;
use std::time::Duration;
use throttle::flow::framing::Framing;
use throttle_limits::clock::Nanos;

/// The name of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitName {
    Line,
    Record,
    Byte,
    Command,
}

/// `123/s`, `1.50 MB/s`, or `1.43 MiB/s` in binary units.
pub(super) fn rate(unit: UnitName, per_second: f64, is_binary: bool) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "only shown, and not negative")]
    let whole = per_second as u64;
    match (unit, whole) {
        (UnitName::Byte, _) => format!("{}/s", size(whole, is_binary)),
        (_, 100..) => format!("{per_second:.0}/s"),
        (_, 10..) => format!("{per_second:.1}/s"),
        _ => format!("{per_second:.2}/s"),
    }
}

/// The pace that a server allows: `about 38/s`, `about 5.4/min`.
pub(crate) fn shown_pace(a_second: f64) -> String {
    let text = match a_second {
        1.0.. => rate(UnitName::Command, a_second, false),
        _ if a_second * 60.0 >= 1.0 => format!("{:.1}/min", a_second * 60.0),
        _ => format!("{:.1}/h", a_second * 3600.0),
    };
    format!("about {text}")
}

/// Calls in a second, if one call starts after each interval.
pub(crate) fn per_second(interval: Nanos) -> f64 {
    1.0 / Duration::from_nanos(interval).as_secs_f64()
}

/// `the server allows about 38/s`
pub(crate) fn allowed(interval: Nanos) -> String {
    format!("the server allows {}", shown_pace(per_second(interval)))
}

impl UnitName {
    pub(crate) fn of(framing: Framing) -> Self {
        match framing {
            Framing::Bytes => UnitName::Byte,
            Framing::EndedBy(b'\n') => UnitName::Line,
            Framing::EndedBy(_) => UnitName::Record,
        }
    }

    pub(crate) fn plural(self) -> &'static str {
        match self {
            UnitName::Line => "lines",
            UnitName::Record => "records",
            UnitName::Byte => "bytes",
            UnitName::Command => "commands",
        }
    }

    pub(super) fn singular(self) -> &'static str {
        self.plural().trim_end_matches('s')
    }

    pub(super) fn count(self, units: u64) -> String {
        counted(units, self.singular())
    }
}

/// `1 line`, `2 lines`
pub(super) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// `1.50 MB`, or `1.43 MiB` in binary units, to the nearest hundredth.
pub(super) fn size(bytes: u64, is_binary: bool) -> String {
    size_by(bytes.into(), is_binary, |bytes, unit| (bytes + unit / 2) / unit)
}

/// `5.05 MiB`, rounded up.
pub(super) fn size_at_least(bytes: u128, is_binary: bool) -> String {
    size_by(bytes, is_binary, u128::div_ceil)
}

fn size_by(bytes: u128, is_binary: bool, divided: fn(u128, u128) -> u128) -> String {
    let (step, names) = if is_binary { (1024, ["KiB", "MiB", "GiB", "TiB"]) } else { (1000, ["kB", "MB", "GB", "TB"]) };
    let sizes = (1_u32..).zip(names).map(|(power, name)| (u128::pow(step, power), name));
    let Some((size, name)) = sizes.take_while(|(size, _)| *size <= bytes).last() else { return format!("{bytes} B") };
    let hundredths = divided(bytes * 100, size);
    format!("{}.{:02} {name}", hundredths / 100, hundredths % 100)
}

/// `, 3 failed, 2 stopped`: the counts that are not 0.
pub(super) fn nonzero<T: Display>(counts: impl IntoIterator<Item = (u64, T)>) -> String {
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, words)| format!(", {count} {words}")).collect::<Vec<_>>().concat()
}

/// `blank lines skipped`
pub(super) fn blank_skipped(count: u64) -> String {
    format!("blank line{} skipped", if count == 1 { "" } else { "s" })
}

/// `value * of / whole`, rounded up; a `whole` of 0 counts as 1.
pub(super) fn scaled(value: u64, of: u64, whole: u64) -> u64 {
    let product = u128::from(value) * u128::from(of);
    u64::try_from(product.div_ceil(u128::from(whole.max(1)))).unwrap_or(u64::MAX)
}
