//! The events that the line of a run, or a shared bucket, returns to the pump.

use std::num::NonZeroU32;
use throttle_limits::clock::Nanos;
use throttle_limits::limits::Start;
use throttle_limits::line::{self, Charged, Costs, KeyId, Unit};

/// The next event.
#[derive(Debug)]
pub enum Next<T> {
    /// This number of plain units may leave now. The time is that of their grant; `None` if they did not have to wait.
    /// The line has to know when its run has left.
    Run(u64, Option<Nanos>, Option<line::Run>),
    /// This unit may leave now.
    Go(Granted, T),
    /// This unit never leaves.
    Refused(T, Refusal),
    /// Nothing happens before this time.
    At(Nanos),
    /// Nothing happens before a report or a further unit.
    Nothing,
}

/// Waits for a time, and may announce a long wait to the user.
pub trait Patience: Sync {
    /// Waits from `now` until `until`, by one or several calls of `wait` with a time. Returns `false` as soon as a call
    /// returns `false`: the wait has ended early.
    fn wait(&self, _now: Nanos, until: Nanos, wait: &mut dyn FnMut(Nanos) -> bool) -> bool {
        wait(until)
    }
}

/// Waits without an announcement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Patience for Silent {}

/// Why a unit never leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its key or a cost cannot be read.
    Unread,
    /// A cost is above the most that a limit ever grants.
    TooMuch,
    /// It would wait longer than allowed.
    TooLate,
    /// This many commands of its key have failed in a row.
    KeyFailed(NonZeroU32),
    /// The server of its key requested a longer pause than allowed.
    SentAway,
}

impl From<line::Refusal> for Refusal {
    fn from(refusal: line::Refusal) -> Self {
        match refusal {
            line::Refusal::TooLate => Refusal::TooLate,
            line::Refusal::GivenUp(Some(failed)) => Refusal::KeyFailed(failed),
            line::Refusal::GivenUp(None) => Refusal::SentAway,
        }
    }
}

/// The grant of a unit.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The key of the unit.
    pub key: KeyId,
    /// When it was charged.
    pub charged: Charged,
    /// Its costs.
    pub costs: Costs,
    /// When it began to wait, on the clock of the line.
    pub arrived: Nanos,
    /// When it was due, on the clock of the line.
    pub due: Nanos,
    /// Its charge in a shared bucket.
    pub charge: Option<Charge>,
}

/// The charge of a unit in a shared bucket.
#[derive(Clone, Copy, Debug)]
pub struct Charge {
    /// The number of the grant.
    pub number: u64,
    /// The start of the unit, if a pace is learned.
    pub start: Option<Start>,
    /// Whether the bucket waits for a report of its end.
    pub is_kept: bool,
}

impl Granted {
    /// The grant of this unit by the line.
    pub(super) fn new<T>(key: KeyId, charged: Charged, unit: &Unit<T>) -> Self {
        Granted { key, charged, costs: unit.costs.clone(), arrived: unit.arrived, due: charged.at, charge: None }
    }

    /// The same unit, granted by a shared bucket for `due`.
    pub(super) fn charged(self, due: Nanos, charge: Charge) -> Self {
        Granted { due, charge: Some(charge), ..self }
    }
}
