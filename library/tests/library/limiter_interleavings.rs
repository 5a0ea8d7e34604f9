//! Random interleavings of all calls to a limiter, compared with a model that has no queue, no alarm and no fractions
//! of a nanosecond.

use crate::limiters::{FakeTimer, ms, poll_once};
use crate::rounds::rounds;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use throttle_limits::clock::NanoClock;
use throttle_limits::limiter::{Acquire, Limiter, Oversize};

/// Rates without a common factor with 10, so that the model's thousandths are the limiter's own fractions, and a
/// changed rate rounds nothing.
const RATES: [u64; 6] = [1, 3, 7, 21, 99, 333];

#[derive(Clone, Debug)]
enum Step {
    Acquire(u64),
    Try(u64),
    /// One waiter of the queue leaves.
    Cancel(prop::sample::Index),
    /// So many milliseconds.
    Pass(u64),
    SetRate(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u64..12).prop_map(Step::Acquire),
        1 => (0_u64..6).prop_map(Step::Try),
        2 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        4 => (0_u64..2000).prop_map(Step::Pass),
        1 => prop::sample::select(&RATES[..]).prop_map(Step::SetRate),
    ]
}

/// The token bucket and its queue, in steps of a millisecond.
struct Model {
    rate: u64,
    burst: u64,
    /// Thousandths of a unit.
    credit: u64,
    line: VecDeque<(usize, u64)>,
    granted: Vec<usize>,
}

impl Model {
    fn pass_a_millisecond(&mut self) {
        self.credit += self.rate;
        self.serve();
    }

    /// A waiter accrues as much credit as it needs; credit that no waiter needs is capped.
    fn serve(&mut self) {
        while self.line.front().is_some_and(|&(_, cost)| cost * 1000 <= self.credit) {
            let (number, cost) = self.line.pop_front().unwrap();
            self.credit -= cost * 1000;
            self.granted.push(number);
        }
        let most = self.line.front().map_or(0, |&(_, cost)| cost).max(self.burst);
        self.credit = self.credit.min(most * 1000);
    }

    fn cancel(&mut self, number: usize) {
        if self.line.front().is_some_and(|&(head, _)| head == number) {
            self.credit = self.credit.min(self.burst * 1000);
        }
        self.line.retain(|&(waits, _)| waits != number);
        self.serve();
    }
}

struct Bench<'a> {
    limiter: &'a Limiter,
    timer: &'a FakeTimer,
    waiting: Vec<(usize, Pin<Box<Acquire<'a>>>)>,
    granted: Vec<usize>,
}

impl Bench<'_> {
    fn to(&self, time: u64) {
        while self.timer.next().is_some_and(|next| next <= time) {
            self.timer.to_next();
        }
        self.timer.to(time);
    }

    fn poll(&mut self) {
        let done = self.waiting.extract_if(.., |(_, waiter)| match poll_once(waiter) {
            Poll::Ready(result) => result.is_ok(),
            Poll::Pending => false,
        });
        self.granted.extend(done.map(|(number, _)| number));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(400)))]

    /// Laws 2, 4 and 5: the limiter grants exactly what a bucket with a queue would grant, in that order.
    #[test]
    fn law2_it_grants_what_the_model_grants(burst in 1_u64..8, steps in prop::collection::vec(step(), 1..60)) {
        let timer = Arc::new(FakeTimer::default());
        let builder = Limiter::builder().rate(RATES[2], ms(1000)).burst(burst).oversize(Oversize::Wait);
        let limiter = builder.clock(timer.clone()).build().unwrap();
        let mut bench = Bench { limiter: &limiter, timer: &timer, waiting: Vec::new(), granted: Vec::new() };
        let credit = burst * 1000;
        let mut model = Model { rate: RATES[2], burst, credit, line: VecDeque::new(), granted: Vec::new() };
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Acquire(cost) => {
                    // Trying gets nothing while somebody waits.
                    if cost == 0 { model.granted.push(number) } else { model.line.push_back((number, cost)) }
                    bench.waiting.push((number, Box::pin(bench.limiter.acquire(cost))));
                    model.serve();
                }
                Step::Try(cost) => {
                    let expected = cost == 0 || (model.line.is_empty() && model.credit >= cost * 1000);
                    prop_assert_eq!(limiter.try_acquire(cost).is_ok(), expected);
                    if expected { model.credit -= cost * 1000 }
                }
                Step::Cancel(index) if !bench.waiting.is_empty() => {
                    let (number, waiter) = bench.waiting.remove(index.index(bench.waiting.len()));
                    drop(waiter);
                    model.cancel(number);
                }
                Step::Cancel(_) => {}
                Step::Pass(millis) => {
                    bench.to(timer.now() + millis * 1_000_000);
                    (0..millis).for_each(|_| model.pass_a_millisecond());
                }
                Step::SetRate(rate) => {
                    limiter.set_rate(rate, ms(1000)).unwrap();
                    model.rate = rate;
                }
            }
            bench.poll();
            prop_assert_eq!(&bench.granted, &model.granted);
            prop_assert_eq!(limiter.waiters(), model.line.len());
            if model.line.is_empty() {
                prop_assert_eq!(limiter.available(), model.credit / 1000);
            }
        }
        drop(bench);
        timer.to(timer.now() + 100_000_000_000_000);
        prop_assert_eq!((limiter.waiters(), limiter.available()), (0, burst), "nothing is leaked");
    }

    /// Laws 2 and 5 with reservations among the waiters: never over in any interval, no reservation moved, and all
    /// units back at the end.
    #[test]
    fn law5_reservations_among_waiters_are_not_moved(
        rate in prop::sample::select(&RATES[..]), burst in 1_u64..8, fair in any::<bool>(),
        steps in prop::collection::vec((0_u8..8, 1_u64..8, 0_u64..1500, any::<prop::sample::Index>()), 1..50),
    ) {
        let timer = Arc::new(FakeTimer::default());
        let builder = Limiter::builder().rate(rate, ms(1000)).burst(burst).fair(fair).clock(timer.clone());
        let limiter = builder.build().unwrap();
        let mut waiting: Vec<(u64, Pin<Box<Acquire<'_>>>)> = Vec::new();
        let (mut reserved, mut left) = (Vec::new(), Vec::new());
        for (step, cost, millis, index) in steps {
            let cost = cost.min(burst);
            match step {
                0 | 1 => waiting.push((cost, Box::pin(limiter.acquire(cost)))),
                2 => {
                    let reservation = limiter.reserve(cost).unwrap();
                    reserved.push((reservation.at(), reservation));
                }
                3 if !reserved.is_empty() => {
                    let (at, reservation) = reserved.remove(index.index(reserved.len()));
                    prop_assert_eq!(at, reservation.at());
                    // A reservation whose time has come has been used.
                    if at > Duration::from_nanos(timer.now()) { reservation.cancel() } else { left.push((at, cost_of(&reservation))) }
                }
                4 if !waiting.is_empty() => drop(waiting.remove(index.index(waiting.len()))),
                5 if limiter.try_acquire(cost).is_ok() => left.push((Duration::from_nanos(timer.now()), cost)),
                _ => {
                    let end = timer.now() + millis * 1_000_000;
                    while timer.next().is_some_and(|next| next <= end) {
                        timer.to_next();
                        collect(&mut waiting, &mut left, &timer);
                    }
                    timer.to(end);
                }
            }
            collect(&mut waiting, &mut left, &timer);
        }
        waiting.clear();
        left.extend(reserved.iter().map(|(at, reservation)| (*at, cost_of(reservation))));
        left.sort_unstable();
        for (first, &(from, _)) in left.iter().enumerate() {
            let mut cost = 0;
            for &(to, units) in &left[first..] {
                cost += units;
                let most = u128::from(burst) * 1_000_000_000 + u128::from(rate) * to.checked_sub(from).unwrap().as_nanos();
                // A reservation's time is rounded up by less than a nanosecond, so the interval may be that much
                // shorter.
                prop_assert!(u128::from(cost) * 1_000_000_000 <= most + u128::from(rate), "{left:?}");
            }
        }
        drop(reserved);
        timer.to(timer.now() + 1_000_000_000_000_000);
        prop_assert_eq!((limiter.waiters(), limiter.available()), (0, burst), "nothing is leaked");
    }
}

fn cost_of(reservation: &throttle_limits::limiter::Reservation) -> u64 {
    reservation.costs().of(0).to_string().parse().unwrap()
}

fn collect(waiting: &mut Vec<(u64, Pin<Box<Acquire<'_>>>)>, left: &mut Vec<(Duration, u64)>, timer: &FakeTimer) {
    let done = waiting.extract_if(.., |(_, waiter)| poll_once(waiter).is_ready());
    left.extend(done.map(|(cost, _)| (Duration::from_nanos(timer.now()), cost)));
}
