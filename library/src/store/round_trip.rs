//! How long an operation on a shared bucket takes: a request to a server, or a write to a file.

use crate::clock::Nanos;
use std::collections::VecDeque;

/// The number of recent exchanges that are used.
const RECENT: usize = 5;

/// The median of the recent exchanges. It ignores a single delay in the server, the network or the scheduler. A network
/// that became slow, or fast again, shows at the third exchange.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip {
    last: VecDeque<Nanos>,
}

impl RoundTrip {
    pub(crate) fn took(&mut self, time: Nanos) {
        if self.last.len() == RECENT {
            self.last.pop_front();
        }
        self.last.push_back(time);
    }

    /// The median; 0 before the first exchange. For an even number of exchanges it is the lower of the two in the
    /// middle.
    pub(crate) fn usual(&self) -> Nanos {
        let mut sorted: Vec<Nanos> = self.last.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0)
    }

    /// The shortest of the recent exchanges: the others may have taken longer because this machine is busy.
    pub(crate) fn least(&self) -> Nanos {
        self.last.iter().copied().min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_delay_does_not_count_and_a_lasting_one_soon_does() {
        for (what, took, usual) in [
            ("none yet", &[][..], 0),
            ("the first is believed", &[120], 120),
            ("connecting took longer", &[240, 120], 120),
            ("one hiccup", &[1, 1, 1, 600], 1),
            ("two in a row", &[1, 1, 1, 1, 600, 600], 1),
            ("one at the start", &[600, 1], 1),
            ("a slow network", &[1, 1, 1, 1, 1, 120, 120, 120], 120),
            ("quick again", &[120, 120, 120, 120, 120, 1, 1, 1], 1),
            ("a restless one", &[20, 40, 25, 600, 30], 30),
        ] {
            let mut round_trip = RoundTrip::default();
            for took in took {
                round_trip.took(*took);
            }
            assert_eq!(round_trip.usual(), usual, "{what}");
        }
    }
}
