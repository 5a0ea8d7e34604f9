//! How long things are waited for.

use std::time::Duration;

/// Longer than any program runs.
pub(super) const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// How long things are waited for when commands end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// From TERM to KILL, after a timeout.
    pub grace: Duration,
    /// After a command has ended, for a process it left behind that holds its output open.
    pub left_behind: Duration,
    /// After KILL, for what is left of a command's group.
    pub dying: Duration,
    /// After everything was killed, for a reader who takes no output.
    pub last_words: Duration,
    /// After the first signal, before the user is told what is waited for.
    pub patience: Duration,
}

impl Default for Times {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Times { grace: 5 * second, left_behind: second, dying: second, last_words: second, patience: second }
    }
}

impl Times {
    /// All of them `divisor` times shorter, for tests; 0 counts as 1.
    #[must_use]
    pub fn shortened(self, divisor: u32) -> Self {
        let short = |time: Duration| time / divisor.max(1);
        Times {
            grace: short(self.grace),
            left_behind: short(self.left_behind),
            dying: short(self.dying),
            last_words: short(self.last_words),
            patience: short(self.patience),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_get_five_seconds_from_term_to_kill_and_the_rest_one() {
        let (times, second) = (Times::default(), Duration::from_secs(1));
        assert_eq!(times.grace, 5 * second);
        assert!([times.left_behind, times.dying, times.last_words, times.patience].iter().all(|time| *time == second));
        assert_eq!(times.shortened(10).grace, second / 2);
    }
}
