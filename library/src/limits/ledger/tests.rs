use super::*;
use crate::clock::{MILLISECOND, SECOND};
use crate::limits::pace::{Served, Start};
use crate::limits::{from_bytes, to_bytes};
use proptest::prelude::*;

/// Marsaglia's xorshift: the seed is a random case's.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

fn policy(limits: &[&str]) -> Policy {
    Policy::new(&limits.iter().map(|limit| limit.parse().unwrap()).collect::<Vec<_>>(), None).unwrap()
}

fn saved(ledger: &Ledger) -> Vec<u8> {
    to_bytes(ledger)
}

fn loaded(bytes: &[u8]) -> Ledger {
    let (ledger, rest) = from_bytes(bytes).expect("it was saved");
    assert!(rest.is_empty());
    ledger
}

/// A process that uses the bucket: what it has read of the log, and its grants.
struct Client {
    ledger: Ledger,
    next: usize,
    owner: Owner,
    sequence: u64,
    grants: Vec<(Grant, Box<[u64]>)>,
}

/// A log that many append to, its snapshot, and all who fold it.
struct World {
    chance: Chance,
    now: Nanos,
    log: Vec<(Nanos, Vec<u8>)>,
    /// What no newcomer reads any more: all before this index is in the snapshot.
    first: usize,
    snapshot: Vec<u8>,
    clients: Vec<Client>,
    /// One that has read everything from the beginning.
    witness: Ledger,
    limits: usize,
}

const POLICIES: [&[&str]; 5] = [
    &["10/s,burst=3"],
    &["7/s,burst=2,initial=0", "100/min,window"],
    &["3/10s,window,slack=100ms"],
    &["1000003/s,burst=5", "5/s,burst=40"],
    &["3000/h,window", "2/s,burst=9", "9/5s,window"],
];

impl World {
    fn new(seed: u64) -> Self {
        let mut chance = Chance(seed | 1);
        let chosen = policy(POLICIES[usize::try_from(chance.below(5)).unwrap()]);
        let witness = Ledger::new(&chosen, 0, 77);
        let snapshot = saved(&witness);
        let limits = chosen.len();
        World { chance, now: 0, log: Vec::new(), first: 0, snapshot, clients: Vec::new(), witness, limits }
    }

    fn newcomer(&mut self) {
        let owner = [1000 + self.clients.len() as u64, self.chance.below(9)];
        let (ledger, next) = (loaded(&self.snapshot), self.first);
        self.clients.push(Client { ledger, next, owner, sequence: 0, grants: Vec::new() });
    }

    /// Stamps an operation and appends it.
    fn append(&mut self, record: &Record) {
        self.witness.apply(&Record { time: self.now, ..record.clone() });
        self.log.push((self.now, to_bytes(record)));
    }

    /// A client reads what is new, and returns the reply to its latest operation.
    fn read(&mut self, place: usize) -> Option<Reply> {
        let client = &mut self.clients[place];
        if client.next < self.first {
            (client.ledger, client.next) = (loaded(&self.snapshot), self.first);
        }
        let mut reply = None;
        for (time, bytes) in &self.log[client.next..] {
            let record = Record { time: *time, ..from_bytes(bytes).unwrap().0 };
            let applied = client.ledger.apply(&record);
            if (record.owner, record.sequence) == (client.owner, client.sequence) && reply.is_none() {
                reply = Some(applied);
            }
        }
        client.next = self.log.len();
        assert!(saved(&client.ledger) == saved(&self.witness), "{:?} and {:?}", client.ledger, self.witness);
        reply
    }

    /// A client sends an operation. Its answer may be lost: then it sends it again. It may die in between.
    fn send(&mut self, place: usize, operation: Operation) -> Option<Reply> {
        let client = &mut self.clients[place];
        client.sequence += 1;
        let record = Record { time: 0, owner: client.owner, sequence: client.sequence, operation };
        self.append(&record);
        while self.chance.one_in(8) {
            self.now += self.chance.below(SECOND);
            self.append(&record);
        }
        if self.chance.one_in(50) {
            return None;
        }
        self.read(place)
    }

    fn costs(&mut self) -> Box<[u64]> {
        let one = 1 + self.chance.below(3);
        if self.chance.one_in(3) { (0..self.limits).map(|_| self.chance.below(4)).collect() } else { [one].into() }
    }

    fn step(&mut self) {
        let later = if self.chance.one_in(3) { self.chance.below(2 * SECOND) } else { self.chance.below(MILLISECOND) };
        self.now += later;
        if self.clients.len() < 4 || self.chance.one_in(40) {
            self.newcomer();
        }
        let place = usize::try_from(self.chance.below(self.clients.len() as u64)).unwrap();
        let kind = self.chance.below(30);
        if kind == 0 {
            // It dies: others notice.
            let dead = self.clients.swap_remove(place);
            let seen = dead.ledger.owners().find(|(owner, _)| *owner == dead.owner);
            if let (Some((owner, seen)), false) = (seen, self.clients.is_empty()) {
                self.send(0, Operation::Gone { owner, seen });
            }
            return;
        }
        let operation = self.operation(kind, place);
        let costs = if let Operation::Take(take) = &operation { take.costs.clone() } else { [1].into() };
        if let Some(Reply::Granted(grants)) = self.send(place, operation) {
            self.clients[place].grants.extend(grants.into_iter().map(|grant| (grant, costs.clone())));
        }
        if self.chance.one_in(5) {
            self.read(place);
            // Several may race: only one that is ahead is taken.
            let client = &self.clients[place];
            if client.next > self.first {
                (self.first, self.snapshot) = (client.next, saved(&client.ledger));
            }
        }
    }

    fn operation(&mut self, kind: u64, place: usize) -> Operation {
        let costs = self.costs();
        let latest = if self.chance.one_in(4) { self.now + self.chance.below(3 * SECOND) } else { Nanos::MAX };
        let granted = self.clients[place].grants.pop();
        match (kind, granted) {
            (1..=6, Some((grant, costs))) => {
                let (number, unused) = (grant.number, vec![(grant.at, costs)]);
                let back = GiveBack { number, unused };
                if self.chance.one_in(4) { Operation::Late(back) } else { Operation::GiveBack(back) }
            }
            (7..=11, Some((grant, charged))) => {
                let real = self.costs();
                Operation::Settle { number: grant.number, at: grant.at, charged, real }
            }
            (12, _) => {
                let until = self.now + self.chance.below(9 * SECOND);
                Operation::Hold { until, refused: vec![self.start(place); usize::from(self.chance.one_in(2))] }
            }
            (22, _) => {
                let later = self.chance.below(2 * SECOND);
                Operation::Hold { until: self.now + later, refused: vec![self.start(place); 3] }
            }
            (13, _) => Operation::Resume,
            (14, _) => {
                let to = policy(POLICIES[usize::try_from(self.chance.below(5)).unwrap()]);
                self.limits = to.len();
                Operation::Set { policy: to, fresh: vec![self.chance.one_in(2); 2] }
            }
            (15, _) if self.chance.one_in(3) => {
                let anew = self.chance.one_in(2).then(|| self.witness.policy().clone());
                Operation::Clear { anew, is_empty: self.chance.one_in(2), number: self.chance.below(1 << 60) }
            }
            (16, _) => Operation::Here,
            (17..=20, _) => {
                let from = if self.chance.one_in(3) { self.now + self.chance.below(SECOND) } else { 0 };
                let (waiting, span) = (1 + self.chance.below(9), self.chance.below(SECOND));
                Operation::Lease(Ask { waiting, span, from, served: self.served(place) })
            }
            (21, Some((grant, costs))) => {
                let promised = grant.at + SECOND;
                Operation::Take(Take { costs, latest: Nanos::MAX, is_open: false, promised, ..Take::default() })
            }
            _ => {
                let (is_open, served) = (self.chance.one_in(3), self.served(place));
                Operation::Take(Take { costs, latest, is_open, promised: 0, served })
            }
        }
    }

    /// What a client starts now, as far as it has read.
    fn start(&self, place: usize) -> Start {
        self.clients[place].ledger.pace_at(self.now).start(self.now)
    }

    fn served(&mut self, place: usize) -> Served {
        let starts = 0..self.chance.below(4);
        starts.fold(Served::default(), |served, _| served.and(self.start(place).succeeded()))
    }
}

proptest! {
    #[test]
    fn all_who_fold_one_log_have_one_ledger(seed: u64) {
        let mut world = World::new(seed);
        for _ in 0..200 {
            world.step();
        }
        for place in 0..world.clients.len() {
            world.read(place);
        }
        prop_assert_eq!(saved(&loaded(&saved(&world.witness))), saved(&world.witness));
    }

    #[test]
    fn a_forged_ledger_or_record_is_refused_without_harm(seed: u64, place: usize, bytes: Vec<u8>, bit in 0..8_u8) {
        let mut world = World::new(seed);
        (0..40).for_each(|_| world.step());
        let mut whole = saved(&world.witness);
        let place = place % whole.len();
        whole[place] ^= 1 << bit;
        for forged in [&whole[..], &whole[..place], &bytes] {
            if let Some((mut ledger, _)) = from_bytes::<Ledger>(forged) {
                ledger.apply(&Record { time: 9, ..from_bytes(&world.log.last().unwrap().1).unwrap().0 });
                let _ = (ledger.waiting(9), ledger.limits().available(9), ledger.paused_until());
            }
            let _ = from_bytes::<Record>(forged);
        }
    }
}

/// The bucket has lost the time; the window has not counted what did not leave.
#[test]
fn what_left_too_late_is_lost_to_a_bucket_and_leaves_no_trace_in_a_window() {
    let mut ledger = Ledger::new(&policy(&["100/s,burst=1", "50/h,window"]), 0, 0);
    let left = |ledger: &Ledger, now| [0, 1].map(|place| ledger.limits().left(now, place).unwrap());
    let lease = Ask { waiting: 20, span: 100 * MILLISECOND, ..Ask::default() };
    let runs = ledger.lease(0, [1, 1], &lease).unwrap();
    assert_eq!((runs.len(), runs[9].at), (10, 90 * MILLISECOND));
    let now = ledger.pass(75 * MILLISECOND);
    assert_eq!(left(&ledger, now), [-2, 0], "all until 90 ms is granted");
    let late = runs[..5].iter().map(|run| (run.at, Box::from([run.units]))).collect();
    let number = runs[0].number;
    let apply = |ledger: &mut Ledger, now, operation| {
        ledger.apply(&Record { time: now, owner: [1, 1], sequence: 0, operation });
    };
    apply(&mut ledger, now, Operation::Late(GiveBack { number, unused: late }));
    let now = ledger.pass(90 * MILLISECOND);
    assert_eq!(left(&ledger, now), [0, 45], "five count");
    let rest = runs[8..].iter().map(|run| (run.at, Box::from([run.units]))).collect();
    apply(&mut ledger, now - 15 * MILLISECOND, Operation::GiveBack(GiveBack { number, unused: rest }));
    let now = ledger.pass(100 * MILLISECOND);
    assert_eq!(left(&ledger, now)[1], 47, "what is given back later is no more than the rest");
}

/// Everybody takes as fast as the bucket lets them. Some leave, some are gone and are noticed, and answers are lost.
#[test]
fn a_crowd_uses_nearly_all_of_a_bucket_and_never_more() {
    let mut chance = Chance(RandomSeed::new());
    for limit in ["10/s,burst=1", "20/2s,window"] {
        let mut ledger = Ledger::new(&policy(&[limit]), 0, 0);
        let (mut left, mut sequence, mut now) = (Vec::new(), 0, 0);
        let mut waiting: Vec<(Owner, Grant, Nanos)> = Vec::new();
        let end = 600 * SECOND;
        while now < end {
            while waiting.len() < 20 {
                sequence += 1;
                let record = Record {
                    time: now,
                    owner: [sequence, 0],
                    sequence: 1,
                    operation: Operation::Take(Take { costs: [1].into(), latest: Nanos::MAX, ..Take::default() }),
                };
                let reply = ledger.apply(&record);
                let Reply::Granted(grants) = reply else { panic!("{reply:?}") };
                if chance.one_in(4) {
                    let Reply::Granted(again) = ledger.apply(&record) else { panic!("it was granted") };
                    assert_eq!((again[0].number, again[0].at), (grants[0].number, grants[0].at));
                }
                waiting.push((record.owner, grants[0], now + chance.below(SECOND)));
            }
            now += 10 * MILLISECOND;
            ledger.pass(now);
            for place in (0..waiting.len()).rev() {
                let (owner, grant, look) = &mut waiting[place];
                if *look <= now {
                    *look += LOOK;
                    if let Some(at) = ledger.time_of(grant.number) {
                        assert!(at <= grant.at, "never later than told");
                        *grant = grant.moved_to(at);
                    }
                }
                if grant.at <= now {
                    left.push(grant.at);
                    let _ = waiting.swap_remove(place);
                } else if chance.one_in(20_000) {
                    let (owner, number, at) = (*owner, grant.number, grant.at);
                    let unused = vec![(at, Box::from([1]))];
                    let operation = if chance.one_in(2) {
                        Operation::GiveBack(GiveBack { number, unused })
                    } else {
                        Operation::Gone { owner, seen: now }
                    };
                    ledger.apply(&Record { time: now, owner: [0, 9], sequence: 0, operation });
                    let _ = waiting.swap_remove(place);
                }
            }
        }
        left.sort_unstable();
        let used = left.len() as u64;
        assert!(used >= 600 * 10 * 98 / 100, "{limit}: {used} of 6000");
        let (most, period) = if limit.contains("window") { (20, 2 * SECOND) } else { (1, SECOND / 10) };
        assert!(left.windows(most + 1).all(|some| some[most] - some[0] >= period), "{limit}: over");
    }
}

struct RandomSeed;

impl RandomSeed {
    #[allow(clippy::new_ret_no_self, reason = "a seed is a number")]
    fn new() -> u64 {
        use std::hash::{BuildHasher, Hasher, RandomState};
        let seed = RandomState::new().build_hasher().finish() | 1;
        println!("seed {seed}");
        seed
    }
}

/// The same operations at the same times lead to the same bytes, on every machine and in every version that knows this
/// format. If this fails, raise the numbers of the formats (`VERSION` of files, `FORMAT` of the script), then change the sum.
#[test]
fn a_recorded_log_leads_to_the_recorded_ledger() {
    let mut world = World::new(0x5eed);
    let mut sum = 0_u64;
    for _ in 0..2000 {
        world.step();
        // FNV-1a.
        for byte in saved(&world.witness) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    assert_eq!(sum, RECORDED, "{} bytes at last", saved(&world.witness).len());
}

const RECORDED: u64 = 18_384_513_867_841_358_140;

/// Grants for 0 to 400 ms are given; the third start is refused.
#[test]
fn after_a_refusal_grants_are_further_apart_and_those_before_are_outdated() {
    let mut ledger = Ledger::new(&policy(&["10/s,burst=1"]), 0, 0);
    let take = Take { costs: [1].into(), latest: Nanos::MAX, ..Take::default() };
    let before: Vec<Grant> = (0..5).map(|_| ledger.take(0, [1, 1], &take).unwrap()).collect();
    assert_eq!(before[4].at, 400 * MILLISECOND);
    let now = ledger.pass(200 * MILLISECOND);
    let refused = vec![ledger.pace_at(now).start(now)];
    let operation = Operation::Hold { until: 250 * MILLISECOND, refused };
    ledger.apply(&Record { time: now, owner: [1, 1], sequence: 0, operation });
    assert!(before.iter().all(|grant| ledger.is_outdated(grant.number)));
    let after = [0; 3].map(|_| ledger.take(now, [1, 1], &take).unwrap());
    assert!(after.iter().all(|grant| !ledger.is_outdated(grant.number)));
    assert_eq!([after[1].at - after[0].at, after[2].at - after[1].at], [111_111_111; 2], "nine tenths of the pace");
    assert_eq!(ledger.pace_at(450 * MILLISECOND), ledger.pace_at(260 * MILLISECOND), "nobody starts with those");
    assert_ne!(ledger.pace_at(after[0].at), ledger.pace_at(260 * MILLISECOND));
}
