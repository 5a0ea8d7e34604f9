//! Loom runs every interleaving of threads that use the fast path, the queue and the timer thread. These tests have their
//! own flag, because tokio leaves out features under the flag of loom:
//!
//! `RUSTFLAGS="--cfg throttle_loom" cargo test --release --lib loom_`

use super::fast_path::{FastPath, Take};
use super::queue::{Places, Queue};
use super::shared::{Shared, Wait};
use super::time::Time;
use super::{Oversize, Rules};
use crate::clock::Clock;
use crate::clock::sync::{AtomicU64, Mutex, lock};
use crate::clock::timer_thread::TimerThread;
use crate::limits::bucket::Bucket;
use crate::limits::{Account, Cost, Limits};
use crate::rate::Rate;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use std::time::Instant;

fn limits(rate: &str, burst: u64) -> Account {
    let rate: Rate = rate.parse().unwrap();
    Account::of(Limits::none().with_bucket(Bucket::new(rate, NonZeroU64::new(burst).unwrap(), burst, 0)), 0)
}

/// Two threads take by the fast path while a third one closes it, takes under the lock and opens it again.
#[test]
fn loom_fast_path_and_lock_never_grant_more_than_there_is() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let fast_path = Arc::new(FastPath::new());
        let held = Arc::new(Mutex::new(limits("1/s", 2)));
        fast_path.open(&lock(&held), 0);
        let by_fast_path = |fast_path: Arc<FastPath>, held: Arc<Mutex<Account>>| match fast_path.take(|| 5, 1) {
            Take::Granted => 1,
            Take::TooLong(_) => 0,
            Take::Closed => by_lock(&fast_path, &held),
        };
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (fast_path, held) = (fast_path.clone(), held.clone());
                loom::thread::spawn(move || by_fast_path(fast_path, held))
            })
            .collect();
        let own = by_lock(&fast_path, &held);
        let granted: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(granted + own, 2, "exactly what the bucket holds");
    });
}

fn by_lock(fast_path: &FastPath, held: &Mutex<Account>) -> u32 {
    let mut limits = lock(held);
    while !fast_path.close(fast_path.seen(), &mut limits, 5) {}
    let granted = limits.take_within(5, 1, 0).is_ok();
    fast_path.open(&limits, 5);
    granted.into()
}

/// Each reading of this clock is later than all before it. A bucket of one unit is full again at each reading, so each
/// request is granted, however long a thread is held up after its reading.
#[test]
fn loom_an_old_reading_of_the_clock_refuses_nothing() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (fast_path, held, clock) = (FastPath::new(), Mutex::new(limits("1000000000/s", 1)), AtomicU64::new(1));
        fast_path.open(&lock(&held), 0);
        let shared = Arc::new((fast_path, held, clock));
        let by_fast_path = loom::thread::spawn({
            let shared = shared.clone();
            move || {
                let (fast_path, held, clock) = &*shared;
                match fast_path.take(|| clock.fetch_add(1, Ordering::SeqCst), 1) {
                    Take::Granted => {}
                    Take::TooLong(wait) => panic!("it would have to wait {wait:?}"),
                    Take::Closed => by_lock_at_reading(fast_path, held, clock),
                }
            }
        });
        by_lock_at_reading(&shared.0, &shared.1, &shared.2);
        by_fast_path.join().unwrap();
    });
}

fn by_lock_at_reading(fast_path: &FastPath, held: &Mutex<Account>, clock: &AtomicU64) {
    loop {
        let (seen, now) = (fast_path.seen(), clock.fetch_add(1, Ordering::SeqCst));
        let mut limits = lock(held);
        if fast_path.close(seen, &mut limits, now) {
            assert!(limits.take_within(fast_path.in_order(now), 1, 0).is_ok());
            fast_path.open(&limits, fast_path.in_order(now));
            return;
        }
        drop(limits);
        loom::thread::yield_now();
    }
}

/// A clock that stands still. Its alarm is a waker that the test wakes.
#[derive(Default)]
struct Still {
    now: std::sync::atomic::AtomicU64,
    alarm: std::sync::Mutex<Option<Waker>>,
}

impl Clock for Still {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now.load(Ordering::SeqCst))
    }

    fn wake_at(&self, _: Duration, waker: &Waker) {
        *self.alarm.lock().unwrap() = Some(waker.clone());
    }
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn shared(timer: &Arc<Still>) -> Arc<Shared> {
    let rules = Rules { oversize: Oversize::Wait, ..Rules::default() };
    Shared::new(Time::Custom(timer.clone()), Queue::new(limits("1/s", 1), rules, None))
}

fn fire(timer: &Still) {
    let waker = timer.alarm.lock().unwrap().take();
    waker.into_iter().for_each(Waker::wake);
}

/// The timer fires while the head leaves: the next waiter is granted and woken, whichever happens first.
#[test]
fn loom_the_next_waiter_wakes_if_the_head_leaves_at_its_time() {
    loom::model(|| {
        let timer = Arc::new(Still::default());
        let shared = shared(&timer);
        assert!(shared.try_now(&Cost::One(1)));
        let count = Arc::new(Count::default());
        let (mut head, mut next) = (Wait::new(Cost::One(1)), Wait::new(Cost::One(1)));
        assert!(head.poll(&shared, &mut Context::from_waker(Waker::noop())).is_pending());
        assert!(next.poll(&shared, &mut Context::from_waker(&Waker::from(count.clone()))).is_pending());
        timer.now.store(2_000_000_000, Ordering::SeqCst);
        let fires = loom::thread::spawn({
            let timer = timer.clone();
            move || fire(&timer)
        });
        head.leave(&shared);
        fires.join().unwrap();
        fire(&timer);
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(next.poll(&shared, &mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())));
    });
}

/// A waiter joins while a thread tries to take: exactly one of them gets the only unit, and a waiter has an alarm.
#[test]
fn loom_joining_and_trying_never_share_a_unit() {
    loom::model(|| {
        let timer = Arc::new(Still::default());
        let shared = shared(&timer);
        let tries = loom::thread::spawn({
            let shared = shared.clone();
            move || shared.try_now(&Cost::One(1))
        });
        let mut wait = Wait::new(Cost::One(1));
        let joined = wait.poll(&shared, &mut Context::from_waker(Waker::noop())).is_ready();
        let tried = tries.join().unwrap();
        assert!(joined ^ tried, "exactly one of them gets the unit");
        assert_eq!(timer.alarm.lock().unwrap().is_some(), !joined);
        wait.leave(&shared);
    });
}

/// One place. A permit is dropped while a thread waits for a place, and while another one tries: the waiter is granted, and
/// no place is lost or given twice.
#[test]
fn loom_a_place_that_is_freed_goes_to_the_waiter() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let timer = Arc::new(Still::default());
        let places = Places { capacity: 1, held: 0 };
        let rules = Rules { oversize: Oversize::Wait, ..Rules::default() };
        let shared = Shared::new(Time::Custom(timer.clone()), Queue::new(limits("1/s", 9), rules, Some(places)));
        assert_eq!(shared.take_place(1), Take::Granted);
        let threads = [
            loom::thread::spawn({
                let shared = shared.clone();
                move || shared.release(1)
            }),
            loom::thread::spawn({
                let shared = shared.clone();
                move || {
                    if shared.take_place(1) == Take::Granted {
                        shared.release(1);
                    }
                }
            }),
        ];
        let count = Arc::new(Count::default());
        let mut wait = Wait::new(Cost::One(1));
        let joined = wait.poll(&shared, &mut Context::from_waker(&Waker::from(count.clone())));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        if joined.is_pending() {
            assert_eq!(count.0.load(Ordering::SeqCst), 1, "it is woken once");
            assert!(wait.poll(&shared, &mut Context::from_waker(Waker::noop())).is_ready());
        }
        assert_eq!(shared.take_place(1), Take::Closed, "the waiter has the only place");
        shared.release(1);
        assert_eq!(shared.take_place(1), Take::Granted);
    });
}

/// The timer thread ends when there is no alarm. An alarm that is set at that moment still fires.
#[test]
fn loom_every_alarm_fires_in_spite_of_other_alarms() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let thread: Arc<TimerThread> = Arc::default();
        let counts = [(); 2].map(|()| Arc::new(Count::default()));
        let [of_other, own] = counts.clone().map(Waker::from);
        let other = loom::thread::spawn({
            let thread = thread.clone();
            move || thread.set(Some(Instant::now()), &of_other).unwrap()
        });
        let changes = Waker::from(Arc::<Count>::default());
        thread.set(Some(Instant::now()), &changes).unwrap();
        thread.set(None, &changes).unwrap();
        thread.set(Some(Instant::now()), &own).unwrap();
        other.join().unwrap();
        while counts.iter().any(|count| count.0.load(Ordering::SeqCst) == 0) {
            loom::thread::yield_now();
        }
        assert!(counts.iter().all(|count| count.0.load(Ordering::SeqCst) == 1));
    });
}
