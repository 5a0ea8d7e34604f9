//! What a run leaves that ends with 75, and how to continue it.

use crate::program::unit_name::counted;

/// Why units are left, and how to continue.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// What ended the run, or one of its keys, early.
    pub(super) why: Option<String>,
    /// Units that were not tried, since their key asked to wait for too long.
    pub(super) sent_away: u64,
    /// All of the input was read and started.
    pub(crate) is_all_started: bool,
    /// How many units are in the done list, if there is one.
    pub(crate) done: Option<u64>,
}

impl Left {
    /// Whether units are left.
    pub(crate) fn is_any(&self) -> bool {
        self.why.is_some()
    }

    /// `stopped by --stop-after 8h: about 188 units are left; run the same command again to go on (812 units done)`
    ///
    /// They are those of so many `commands`, each of which is for `max_args` units at most.
    pub(super) fn line(&self, (about, commands): (&str, u64), max_args: u64) -> Option<String> {
        let why = self.why.as_ref()?;
        // Beyond the largest number nothing is said of it.
        let (about, most) = (if self.is_all_started { "" } else { about }, commands.checked_mul(max_args).unwrap_or(0));
        let (about, units) = match about {
            about if max_args <= 1 => (about, commands),
            "" => ("at most ", most),
            // Each of them has a unit.
            "at least " => (about, commands),
            _ => ("at most about ", most),
        };
        let left = match units {
            0 => "units are left".to_owned(),
            1 => format!("{about}1 unit is left"),
            units => format!("{about}{units} units are left"),
        };
        let how = self.done.map_or_else(
            || "with --done FILE a run can go on where it stopped".to_owned(),
            |done| format!("run the same command again to go on ({} done)", counted(done, "unit")),
        );
        Some(format!("{why}: {left}; {how}"))
    }
}
