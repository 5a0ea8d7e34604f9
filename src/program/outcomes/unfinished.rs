//! The units that are left by a run that ends with 75, and how to continue the run.

use crate::program::unit_name::counted;

/// Why units are left, and how to continue.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    /// Why the run, or one of its keys, ended early.
    pub(super) why: Option<String>,
    /// Units that were not tried, because the server of their key requested a wait that is too long.
    pub(super) sent_away: u64,
    /// Whether the whole input was read and started.
    pub(crate) is_all_started: bool,
    /// The number of units in the done list, if there is one.
    pub(crate) done: Option<u64>,
    /// Whether `> FILE` would empty the output of this run before the next one.
    pub(crate) is_overwritten: bool,
}

/// An upper bound of the number of units that is larger than this says nothing.
const MAX_SHOWN: u64 = u32::MAX as u64;

impl Unfinished {
    /// Whether units are left.
    pub(crate) fn is_any(&self) -> bool {
        self.why.is_some()
    }

    /// `stopped by --stop-after 8h: about 188 units are left; run the same command again to continue (812 units done)`
    ///
    /// `commands` is the number of commands that are left, each for at most `max_args` units. `about` is how exact this
    /// number is: `about `, `at least ` or nothing.
    pub(super) fn line(&self, (about, commands): (&str, u64), max_args: u64) -> Option<String> {
        let why = self.why.as_ref()?;
        // A bound far beyond any real input is not shown.
        let most = commands.checked_mul(max_args).filter(|most| *most <= MAX_SHOWN).unwrap_or(0);
        let about = if self.is_all_started { "" } else { about };
        let (about, units) = match about {
            about if max_args <= 1 => (about, commands),
            "" => ("at most ", most),
            // Each command has at least one unit.
            "at least " => (about, commands),
            _ => ("at most about ", most),
        };
        let units_left = match units {
            0 => "units are left".to_owned(),
            1 => format!("{about}1 unit is left"),
            units => format!("{about}{units} units are left"),
        };
        let how = self.done.map_or_else(
            || "with --done FILE a run can continue where it stopped".to_owned(),
            |done| {
                let append = if self.is_overwritten { " with >> FILE in place of > FILE" } else { "" };
                format!("run the same command again{append} to continue ({} done)", counted(done, "unit"))
            },
        );
        Some(format!("{why}: {units_left}; {how}"))
    }
}
