//! The meter: counts units, bytes and time for progress and summary.
//!
//! The pump reports each wait before it begins; time counts for that wait until the next report. A reading by another
//! thread includes the current wait, so the status is right at any time.

use super::dropping::Dropped;
use super::lock::unpoisoned;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use throttle_limits::clock::Nanos;

/// The current activity of the pump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Its own work: deciding and counting.
    #[default]
    Working,
    /// Waiting for input.
    Source,
    /// Waiting for the limit at this index.
    Limit(usize),
    /// Waiting for the reader of the output.
    Sink,
}

/// Counts units, bytes and time. Threads share it by reference.
#[derive(Debug)]
pub struct Meter {
    record: Mutex<Record>,
}

#[derive(Debug)]
struct Record {
    started: Nanos,
    phase: Phase,
    since: Nanos,
    /// The end of a pause. Time before it does not count as a wait for limits.
    paused_until: Nanos,
    lateness: Histogram<u64>,
    dropped: Dropped,
    /// The numbers up to now. The elapsed time and the lateness are added when the meter is read.
    reading: Reading,
}

/// The numbers of the meter at one moment. Times are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Units released.
    pub units: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time since the start.
    pub elapsed: Nanos,
    /// Time spent waiting for input.
    pub source: Nanos,
    /// Time spent waiting for the reader.
    pub sink: Nanos,
    /// Time spent waiting for each limit, by index.
    pub limits: Vec<Nanos>,
    /// The lateness of units that had waited for a limit: median and 99th percentile, to two digits. `None` if no unit
    /// had waited.
    pub lateness: Option<(Nanos, Nanos)>,
    /// The current wait for a limit, if there is one.
    pub wait: Option<Wait>,
    /// Units that were read and not yet released, as far as they were counted.
    pub units_ahead: u64,
    /// Their bytes.
    pub bytes_ahead: u64,
    /// Units that were dropped.
    pub dropped: u64,
    /// The current activity of the pump.
    pub phase: Phase,
    /// The number of keys with waiting units.
    pub keys_waiting: u64,
    /// The highest number of keys with limits at one time.
    pub keys: u64,
}

/// A wait for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// When it began.
    pub since: Nanos,
    /// When it ends.
    pub until: Nanos,
}

/// The most lateness that is recorded, in nanoseconds. Longer lateness is recorded as this value.
const MAX_LATENESS: Nanos = 1 << 45;

impl Meter {
    /// A meter that starts at `now`, for `limits` limits.
    ///
    /// # Panics
    /// Never: the bounds of the histogram are constants that it accepts.
    pub fn new(now: Nanos, limits: usize) -> Self {
        let lateness = Histogram::new_with_bounds(1, MAX_LATENESS, 2).expect("constant bounds");
        let reading = Reading { limits: vec![0; limits], ..Reading::default() };
        let (phase, dropped) = (Phase::Working, Dropped::default());
        let record = Record { started: now, phase, since: now, paused_until: now, lateness, dropped, reading };
        Meter { record: Mutex::new(record) }
    }

    /// Counts time for `phase` from `now` on.
    pub fn enter(&self, phase: Phase, now: Nanos) {
        self.lock().enter(phase, now);
    }

    /// Records that the current wait for a limit ends at `until`.
    pub fn waits_until(&self, until: Nanos) {
        let mut record = self.lock();
        record.reading.wait = Some(Wait { since: record.since, until });
    }

    /// Records a pause until `until`. Time in a pause does not count as a wait for limits.
    pub fn paused_until(&self, until: Nanos) {
        self.lock().paused_until = until;
    }

    /// Records that `units` units with `bytes` bytes were read and not yet released. `keys` has the number of keys with
    /// waiting units, and the number of all keys.
    pub fn read_ahead(&self, units: u64, bytes: u64, keys: [u64; 2]) {
        let reading = &mut self.lock().reading;
        (reading.units_ahead, reading.bytes_ahead) = (units, bytes);
        (reading.keys_waiting, reading.keys) = (keys[0], reading.keys.max(keys[1]));
    }

    /// Records that these units left at `now`.
    pub fn passed(&self, units: u64, bytes: u64, now: Nanos) {
        let mut record = self.lock();
        record.enter(Phase::Working, now);
        record.reading.units += units;
        record.reading.bytes += bytes;
        record.reading.units_ahead = record.reading.units_ahead.saturating_sub(units);
    }

    /// Counts bytes of a unit that is passed in pieces.
    pub fn passed_piece(&self, bytes: u64) {
        self.lock().reading.bytes += bytes;
    }

    /// Counts a dropped unit of this key.
    pub fn dropped(&self, key: Option<&[u8]>) {
        let mut record = self.lock();
        record.dropped.count(key);
        record.reading.dropped = record.dropped.units;
    }

    /// The number of dropped units of each key.
    pub fn dropped_by_key(&self) -> BTreeMap<Box<[u8]>, u64> {
        self.lock().dropped.keys.clone()
    }

    /// Records that `units` units that waited for a limit leave `lateness` nanoseconds after their time.
    pub fn late(&self, units: u64, lateness: Nanos) {
        let mut record = self.lock();
        // Without limits, a unit waits only for its turn or for room in the sink.
        if !record.reading.limits.is_empty() {
            record.lateness.saturating_record_n(lateness, units);
        }
    }

    /// The numbers at `now`.
    pub fn read(&self, now: Nanos) -> Reading {
        let mut record = self.lock();
        let phase = record.phase;
        record.enter(phase, now);
        let late = &record.lateness;
        let lateness = (!late.is_empty()).then(|| (late.value_at_quantile(0.5), late.value_at_quantile(0.99)));
        let elapsed = now.saturating_sub(record.started);
        Reading { elapsed, lateness, phase, ..record.reading.clone() }
    }

    /// Returns the record. Counting continues even if another thread panicked.
    fn lock(&self) -> MutexGuard<'_, Record> {
        unpoisoned(self.record.lock())
    }
}

impl Record {
    fn enter(&mut self, phase: Phase, now: Nanos) {
        let reading = &mut self.reading;
        if phase != self.phase {
            reading.wait = None;
        }
        let time = match self.phase {
            Phase::Working => None,
            Phase::Source => Some(&mut reading.source),
            Phase::Sink => Some(&mut reading.sink),
            Phase::Limit(place) => reading.limits.get_mut(place),
        };
        let is_limit = matches!(self.phase, Phase::Limit(_));
        let since = if is_limit { self.since.max(self.paused_until) } else { self.since };
        if let Some(time) = time {
            *time += now.saturating_sub(since);
        }
        (self.phase, self.since) = (phase, now.max(self.since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_current_wait_is_counted_once() {
        let meter = Meter::new(100, 2);
        meter.enter(Phase::Limit(1), 110);
        assert_eq!(meter.read(130).limits, [0, 20]);
        assert_eq!(meter.read(140).limits, [0, 30]);
        meter.enter(Phase::Source, 150);
        meter.passed(2, 10, 157);
        let reading = meter.read(200);
        assert_eq!((reading.source, reading.sink, reading.limits), (7, 0, vec![0, 40]));
        assert_eq!((reading.units, reading.bytes, reading.elapsed, reading.lateness), (2, 10, 100, None));
    }

    #[test]
    fn a_current_wait_is_reported_until_it_ends() {
        let meter = Meter::new(0, 1);
        meter.enter(Phase::Limit(0), 10);
        meter.waits_until(500);
        let wait = Some(Wait { since: 10, until: 500 });
        assert_eq!((meter.read(20).wait, meter.read(30).wait), (wait, wait));
        meter.passed(1, 1, 500);
        assert_eq!(meter.read(501).wait, None);
    }

    #[test]
    fn a_pause_is_no_wait_for_the_limits() {
        let meter = Meter::new(0, 1);
        meter.enter(Phase::Limit(0), 10);
        meter.enter(Phase::Working, 20);
        meter.paused_until(100);
        meter.enter(Phase::Limit(0), 30);
        assert_eq!(meter.read(70).limits, [10]);
        meter.enter(Phase::Source, 130);
        assert_eq!((meter.read(150).limits, meter.read(150).source), (vec![40], 20));
    }

    #[test]
    fn lateness_is_weighed_by_units() {
        let meter = Meter::new(0, 1);
        meter.late(98, 5);
        meter.late(2, 100);
        assert_eq!(meter.read(0).lateness, Some((5, 100)));
    }
}
