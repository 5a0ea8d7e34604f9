//! What units are called in messages.

use throttle::flow::framing::Framing;

/// What a unit is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitName {
    Line,
    Record,
    Byte,
    Command,
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

/// `value * of / whole`, rounded up; a `whole` of 0 counts as 1.
pub(super) fn scaled(value: u64, of: u64, whole: u64) -> u64 {
    let product = u128::from(value) * u128::from(of);
    u64::try_from(product.div_ceil(u128::from(whole.max(1)))).unwrap_or(u64::MAX)
}
