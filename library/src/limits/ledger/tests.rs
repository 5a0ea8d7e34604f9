use super::core::{MAX_ENTRIES, MAX_MOVED, MAX_RECENT, MAX_RUNS};
use super::entry::Charge;
use super::operation::Recent;
use super::*;
use crate::clock::Nanos;
use crate::clock::{MILLISECOND, SECOND};
use crate::limits::grant::{Grant, LOOK, Refusal};
use crate::limits::pace::{Served, Start};
use crate::limits::policy::Policy;
use crate::limits::together::Limits;
use crate::limits::{from_bytes, to_bytes};
use crate::rounds::rounds;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Marsaglia's xorshift; a random case gives the seed.
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

/// A process that uses the bucket: the part of the log that it has read, and its grants.
struct Client {
    ledger: Ledger,
    next: usize,
    owner: Owner,
    sequence: u64,
    grants: Vec<Granted>,
}

/// A grant, its costs, and its key.
type Granted = (Grant, Box<[u64]>, Option<OfKey>);

/// A log to which many clients append, its snapshot, and all ledgers that fold it.
struct World {
    chance: Chance,
    now: Nanos,
    log: Vec<(Nanos, Vec<u8>)>,
    /// Newcomers start at this index of the log. The snapshot contains everything before it.
    first: usize,
    snapshot: Vec<u8>,
    clients: Vec<Client>,
    /// A ledger that has read the log from the beginning.
    witness: Ledger,
    limits: usize,
}

const POLICIES: [&str; 9] = [
    "10/s,burst=3",
    "7/s,burst=2,initial=0\n100/min,window",
    "3/10s,window,slack=100ms",
    "1000003/s,burst=5\n5/s,burst=40",
    "3000/h,window\n2/s,burst=9\n9/5s,window",
    "10/s,burst=3\nper=host\n2/s,burst=2",
    "per=host\njobs=2\n7/min,burst=3,initial=0\n5/10s,window",
    "9/s,window\njobs=5\nper=f1\nfails=3\n3/s,burst=1",
    "jobs=3",
];

fn any_policy(chance: &mut Chance) -> Policy {
    let place = usize::try_from(chance.below(POLICIES.len() as u64)).unwrap();
    Policy::from_lines(POLICIES[place]).unwrap()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut chance = Chance(seed | 1);
        let chosen = any_policy(&mut chance);
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

    /// Lets a client read the new records, and returns the reply to its latest operation.
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

    /// Lets a client send an operation. If the reply is lost, the client sends the operation again. It may die
    /// meanwhile.
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
        if self.limits > 0 && self.chance.one_in(3) {
            (0..self.limits).map(|_| self.chance.below(4)).collect()
        } else {
            [one].into()
        }
    }

    /// A random key of a few, with a cost of its own.
    fn key(&mut self) -> Option<OfKey> {
        let name = self.chance.below(5);
        let cost = self.chance.below(3);
        let latest = if self.chance.one_in(3) { self.now + self.chance.below(SECOND) } else { Nanos::MAX };
        let since = if self.chance.one_in(2) { self.now.saturating_sub(self.chance.below(SECOND)) } else { Nanos::MAX };
        let name = (name > 0).then(|| [b'a' + u8::try_from(name).unwrap()].into());
        let learns = self.chance.one_in(2);
        name.map(|name| OfKey { name, costs: [cost].into(), latest, since, learns })
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
            // The client dies, and the others notice.
            let dead = self.clients.swap_remove(place);
            let seen = dead.ledger.owners().find(|(owner, _)| *owner == dead.owner);
            if let (Some((owner, seen)), false) = (seen, self.clients.is_empty()) {
                self.send(0, Operation::Gone { owner, seen });
            }
            return;
        }
        let operation = self.operation(kind, place);
        let takes = match &operation {
            Operation::Take(take) => vec![take.clone()],
            Operation::Several { takes, .. } => takes.clone(),
            _ => Vec::new(),
        };
        let granted: Vec<_> = match self.send(place, operation) {
            Some(Reply::Granted(grants)) => grants.into_iter().map(Ok).collect(),
            Some(Reply::Each(answers)) => answers,
            _ => Vec::new(),
        };
        let takes = takes.into_iter().map(Some).chain(std::iter::repeat(None));
        for (grant, take) in granted.into_iter().zip(takes) {
            let (costs, key) = take.map_or_else(|| ([1].into(), None), |take| (take.costs, take.key));
            self.clients[place].grants.extend(grant.ok().map(|grant| (grant, costs, key)));
        }
        if self.chance.one_in(5) {
            self.read(place);
            // Clients may race. A new snapshot is taken only if it is ahead.
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
            (1..=6, Some((grant, costs, key))) => {
                let (number, unused) = (grant.number, vec![(grant.at, costs)]);
                let back = GiveBack { number, unused, key };
                if self.chance.one_in(4) { Operation::Late(vec![back]) } else { Operation::GiveBack(vec![back]) }
            }
            (7..=9, Some((grant, charged, key))) => {
                let (real, of_key) = (self.costs(), self.key().map_or([2].into(), |key| key.costs));
                let key = key.map(|key| (key, of_key));
                Operation::Settle { number: grant.number, at: grant.at, charged, real, key, round_trip: 0 }
            }
            (10, Some((grant, ..))) => Operation::Start { number: grant.number, process: [self.chance.below(9), 1] },
            (11, Some((grant, ..))) => Operation::End { number: grant.number },
            (12, _) => {
                let (until, key) = (self.now + self.chance.below(9 * SECOND), self.key());
                let refused = vec![self.start(place, key.as_ref()); usize::from(self.chance.one_in(2))];
                Operation::Hold { until, refused, key: key.map(|key| key.name) }
            }
            (22, _) => {
                let later = self.chance.below(2 * SECOND);
                Operation::Hold { until: self.now + later, refused: vec![self.start(place, None); 3], key: None }
            }
            (13, _) => Operation::Resume { key: self.key().map(|key| key.name) },
            (14, _) => {
                let to = any_policy(&mut self.chance);
                self.limits = to.len();
                Operation::Set { policy: to, fresh: vec![self.chance.one_in(2); 2] }
            }
            (15, _) if self.chance.one_in(3) => {
                let anew = self.chance.one_in(2).then(|| self.witness.policy().clone());
                Operation::Clear {
                    anew,
                    is_empty: self.chance.one_in(2),
                    number: self.chance.below(1 << 60),
                    key: self.key().filter(|_| self.chance.one_in(2)).map(|key| key.name),
                }
            }
            (16, _) => Operation::Here,
            (17..=20, _) => {
                let from = if self.chance.one_in(3) { self.now + self.chance.below(SECOND) } else { 0 };
                let (waiting, span) = (1 + self.chance.below(9), self.chance.below(SECOND));
                Operation::Lease(Ask { waiting, span, from, served: self.served(place, None) })
            }
            (23..=25, _) => {
                let take = |world: &mut World| {
                    let (costs, latest) = (world.costs(), world.now + world.chance.below(9 * SECOND));
                    Take {
                        costs,
                        latest,
                        key: world.key(),
                        open: world.chance.one_in(3).then_some(50),
                        ..Take::default()
                    }
                };
                let takes = (0..=self.chance.below(8)).map(|_| take(self)).collect();
                Operation::Several { takes, span: self.chance.below(SECOND) }
            }
            (26, _) => {
                let (succeeded, failed) = (self.chance.one_in(2), u32::try_from(self.chance.below(4)).unwrap());
                let key = self.key().map_or(NO_KEY.into(), |key| key.name);
                Operation::Tried { key, succeeded, failed }
            }
            (21, Some((grant, costs, key))) => {
                let from = grant.at + SECOND;
                Operation::Take(Take { costs, latest: Nanos::MAX, from, key, ..Take::default() })
            }
            _ => {
                let (open, key) = (self.chance.one_in(3).then_some(50), self.key());
                let served = self.served(place, key.as_ref());
                Operation::Take(Take { costs, latest, open, served, key, ..Take::default() })
            }
        }
    }

    /// The start of a call by a client now, as far as it has read the log.
    fn start(&self, place: usize, key: Option<&OfKey>) -> Start {
        let ledger = &self.clients[place].ledger;
        let name = key.map(|key| &*key.name);
        name.map_or_else(|| ledger.pace_at(self.now), |name| ledger.pace_of(name, self.now)).start(self.now)
    }

    fn served(&mut self, place: usize, key: Option<&OfKey>) -> Served {
        let starts = 0..self.chance.below(4);
        let one = self.start(place, key).succeeded(place.is_multiple_of(3));
        let one = if place == 1 { one.but_one() } else { one };
        starts.fold(Served::default(), |served, _| served.and(one))
    }
}

/// What takes the place of one byte: another byte, or the largest number.
fn forged_bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0), Just(0x7f), Just(0xff), any::<u8>()].prop_map(|byte| vec![byte]);
    prop_oneof![byte, Just(to_bytes(&u64::MAX))]
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
    fn several_requests_are_granted_in_order_and_only_once(seed: u64) {
        let mut world = World::new(seed);
        for _ in 0..60 {
            world.step();
        }
        let Operation::Several { takes, .. } = world.operation(23, 0) else { panic!("kind 23 is Several") };
        let (time, owner) = (world.now, [1, 1]);
        let apply = |ledger: &mut Ledger, time, sequence, operation| {
            ledger.apply(&Record { time, owner, sequence, operation })
        };
        let (mut together, mut alone) = (world.witness.clone(), world.witness.clone());
        let several = Operation::Several { takes: takes.clone(), span: Nanos::MAX };
        let Reply::Each(answers) = apply(&mut together, time, 1, several.clone()) else { panic!("one for each") };
        let mut before = BTreeMap::new();
        let one = |take: &Take| {
            let behind = match before.get(take.name()) {
                Some(Err(_)) => return Err(Refusal::TooLong { wait: 0 }),
                Some(Ok(before)) => Take { from: *before, ..take.clone() },
                _ => take.clone(),
            };
            let answer = match apply(&mut alone, time, 0, Operation::Take(behind)) {
                Reply::Granted(grants) => Ok(grants[0]),
                Reply::Refused(refusal) => Err(refusal),
                reply => panic!("{reply:?}"),
            };
            if answer != Err(Refusal::Never) {
                before.insert(take.name().to_vec(), answer.map(|grant: Grant| grant.at));
            }
            answer
        };
        prop_assert_eq!(&answers, &takes.iter().map(one).collect::<Vec<_>>());
        let later = time + world.chance.below(2 * SECOND);
        for take in &takes {
            let probes = [together.clone(), alone.clone()];
            let [one, other] = probes.map(|mut ledger| apply(&mut ledger, later, 0, Operation::Take(take.clone())));
            prop_assert_eq!(one, other, "both have granted the same");
        }
        let times = |answers: &[Result<Grant, Refusal>]| -> Vec<_> {
            let grants = answers.iter().map(|answer| answer.ok().filter(|grant| grant.number > 0));
            grants.map(|grant| grant.map(|grant| (grant.number, grant.at > later, grant.at.max(later)))).collect()
        };
        let again = apply(&mut together, later, 1, several);
        let expected = times(&answers);
        let granted = expected.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        if granted == 0 {
            prop_assert_eq!(again, Reply::Done);
        } else {
            let Reply::Each(again) = again else { panic!("one for each") };
            prop_assert_eq!(times(&again), &expected[..granted]);
        }
    }

    /// A process that may write to a bucket can write any bytes in place of the ledger and of the log after it.
    #[test]
    fn a_forged_ledger_or_record_is_refused_without_harm(
        seed: u64,
        changes in prop::collection::vec((any::<usize>(), forged_bytes()), 1..8),
        cut: usize,
        bytes: Vec<u8>,
    ) {
        let mut world = World::new(seed);
        (0..40).for_each(|_| world.step());
        let (whole, known) = (saved(&world.witness), world.log.len());
        (0..20).for_each(|_| world.step());
        let forge = |whole: &[u8]| {
            let mut forged = whole.to_vec();
            for (place, bytes) in &changes {
                let place = place % forged.len();
                forged.splice(place..=place, bytes.iter().copied());
            }
            forged
        };
        for forged in [&whole, &forge(&whole), &whole[..cut % whole.len()].to_vec(), &bytes] {
            let Some((mut ledger, _)) = from_bytes::<Ledger>(forged) else { continue };
            let log = world.log[known..].iter().flat_map(|(time, record)| [(time, record.clone()), (time, forge(record))]);
            for (time, record) in log {
                let Some((record, _)) = from_bytes::<Record>(&record) else { continue };
                ledger.apply(&Record { time: *time, ..record });
                let _ = (ledger.waiting(*time), ledger.limits().available(*time), ledger.paused_until());
            }
            let _ = from_bytes::<Ledger>(&saved(&ledger));
        }
    }
}

/// The bucket has lost the time; the window does not count the units that did not leave.
#[test]
fn a_late_unit_loses_tokens_and_no_window_counts_it() {
    let mut ledger = Ledger::new(&policy(&["100/s,burst=1", "50/h,window"]), 0, 0);
    let left = |ledger: &Ledger, now| [0, 1].map(|place| ledger.limits().left(now, place).unwrap());
    let lease = Ask { waiting: 20, span: 100 * MILLISECOND, ..Ask::default() };
    let runs = ledger.lease(0, [1, 1], &lease).unwrap();
    assert_eq!((runs.len(), runs[9].at), (10, 90 * MILLISECOND));
    let now = ledger.pass(75 * MILLISECOND);
    assert_eq!(left(&ledger, now), [-2, 0], "all units until 90 ms are granted");
    let late = runs[..5].iter().map(|run| (run.at, Box::from([run.units]))).collect();
    let number = runs[0].number;
    let apply = |ledger: &mut Ledger, now, operation| {
        ledger.apply(&Record { time: now, owner: [1, 1], sequence: 0, operation });
    };
    apply(&mut ledger, now, Operation::Late(vec![GiveBack { number, unused: late, key: None }]));
    let now = ledger.pass(90 * MILLISECOND);
    assert_eq!(left(&ledger, now), [0, 45], "five count");
    let rest = runs[8..].iter().map(|run| (run.at, Box::from([run.units]))).collect();
    apply(&mut ledger, now - 15 * MILLISECOND, Operation::GiveBack(vec![GiveBack { number, unused: rest, key: None }]));
    let now = ledger.pass(100 * MILLISECOND);
    assert_eq!(left(&ledger, now)[1], 47, "at most the rest is given back later");
}

/// All clients take as fast as the bucket lets them. Some leave, some die and are noticed, and replies are lost.
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
                        assert!(at <= grant.at, "never later than the granted time");
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
                        Operation::GiveBack(vec![GiveBack { number, unused, key: None }])
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

/// The same operations at the same times lead to the same bytes, on every machine and in every version of this format.
/// If this fails, raise the version numbers of the formats (`VERSION` of files, `FORMAT` of the script), then change
/// the sum.
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

const RECORDED: u64 = 4_523_711_847_346_783_733;

/// Grants for 0 to 400 ms are given; the third start is refused.
#[test]
fn a_refusal_spreads_grants_and_outdates_earlier_grants() {
    let mut ledger = Ledger::new(&policy(&["10/s,burst=1"]), 0, 0);
    let take = Take { costs: [1].into(), latest: Nanos::MAX, ..Take::default() };
    let before: Vec<Grant> = (0..5).map(|_| ledger.take(0, [1, 1], &take).unwrap()).collect();
    assert_eq!(before[4].at, 400 * MILLISECOND);
    let now = ledger.pass(200 * MILLISECOND);
    let refused = vec![ledger.pace_at(now).start(now)];
    let operation = Operation::Hold { until: 250 * MILLISECOND, refused, key: None };
    ledger.apply(&Record { time: now, owner: [1, 1], sequence: 0, operation });
    assert!(before.iter().all(|grant| ledger.is_outdated(grant.number)));
    let after = [0; 3].map(|_| ledger.take(now, [1, 1], &take).unwrap());
    assert!(after.iter().all(|grant| !ledger.is_outdated(grant.number)));
    assert_eq!([after[1].at - after[0].at, after[2].at - after[1].at], [111_111_111; 2], "nine tenths of the pace");
    assert_eq!(
        ledger.pace_at(450 * MILLISECOND),
        ledger.pace_at(260 * MILLISECOND),
        "no call starts with the outdated grants"
    );
    assert_ne!(ledger.pace_at(after[0].at), ledger.pace_at(260 * MILLISECOND));
}

/// Only one key is refused. Grants of another key keep their distance, and that key learns no pace.
#[test]
fn a_refusal_of_one_key_slows_only_that_key_down() {
    let (mut ledger, owner) = (Ledger::new(&Policy::from_lines("per=f1\n10/s,burst=1").unwrap(), 0, 0), [1, 1]);
    let take = |ledger: &mut Ledger, now, name: &[u8], served| {
        let key = OfKey { learns: true, ..OfKey::of(name.into()) };
        let take = Take { served, key: Some(key), ..Take::of(&[1]) };
        match ledger.apply(&Record { time: now, owner, sequence: 0, operation: Operation::Take(take) }) {
            Reply::Granted(grants) => grants[0].at,
            reply => panic!("{reply:?}"),
        }
    };
    let none = Served::default();
    let times = (0..5).map(|_| [b"a", b"b"].map(|name| take(&mut ledger, 0, name, none)));
    assert_eq!(times.last(), Some([400 * MILLISECOND; 2]));
    let now = ledger.pass(200 * MILLISECOND);
    let start = ledger.pace_of(b"a", now).start(now);
    let operation = Operation::Hold { until: 250 * MILLISECOND, refused: vec![start], key: Some((*b"a").into()) };
    ledger.apply(&Record { time: now, owner, sequence: 0, operation });
    let after = [b"a", b"b"].map(|name| [0; 3].map(|_| take(&mut ledger, now, name, none)));
    assert_eq!(after[0].map(|at| at - after[0][0]), [0, 111_111_111, 222_222_222], "nine tenths of the pace");
    assert_eq!(after[1].map(|at| at - 500 * MILLISECOND), [0, 100 * MILLISECOND, 200 * MILLISECOND]);
    assert_eq!([b"a", b"b"].map(|name| ledger.pace_of(name, now).learned()), [Some(111_111_111), None]);
    // Successes restore the pace, including successes that other processes report with their next requests.
    let mut now = SECOND;
    for _ in 0..400 {
        let served = ledger.pace_of(b"a", now).start(now).succeeded(false);
        now = take(&mut ledger, now, b"a", served);
    }
    assert_eq!(ledger.pace_of(b"a", now).learned(), None);
    // The pace of a key counts the starts until now.
    let mut ledger = Ledger::new(&Policy::from_lines("per=f1\n1/2s,burst=1").unwrap(), 0, 0);
    for _ in 0..3 {
        let key = Some(OfKey { learns: true, ..OfKey::of(b"a"[..].into()) });
        let _ = ledger.take(SECOND, [1, 1], &Take { key, ..Take::of(&[1]) }).unwrap();
    }
    let before = ledger.pace_of(b"a", 3 * SECOND);
    ledger.pass(3 * SECOND);
    assert_eq!(ledger.pace_of(b"a", 3 * SECOND), before);
}

#[test]
fn a_key_with_too_many_failures_is_abandoned_for_an_hour() {
    let (mut ledger, owner) = (Ledger::new(&Policy::from_lines("per=f1\nfails=3\n1/s").unwrap(), 0, 0), [1, 1]);
    let apply = |ledger: &mut Ledger, time, operation| ledger.apply(&Record { time, owner, sequence: 0, operation });
    let take = |ledger: &mut Ledger, now, name: &[u8]| {
        let take = Take { key: Some(OfKey::of(name.into())), ..Take::of(&[]) };
        match apply(ledger, now, Operation::Take(take)) {
            Reply::Granted(grants) => Ok(grants[0].at),
            Reply::Refused(refusal) => Err(refusal),
            reply => panic!("{reply:?}"),
        }
    };
    let tried = |ledger: &mut Ledger, now, succeeded, failed| {
        apply(ledger, now, Operation::Tried { key: (*b"a").into(), succeeded, failed });
    };
    let gone = Err(Refusal::GivenUp(3.try_into().unwrap()));
    tried(&mut ledger, 0, false, 2);
    assert_eq!([b"a", b"b"].map(|name| ledger.failed(name)), [2, 0]);
    tried(&mut ledger, 1, true, 2);
    let at = [0; 3].map(|_| take(&mut ledger, 2, b"a").unwrap());
    tried(&mut ledger, SECOND, false, 1);
    assert_eq!(take(&mut ledger, SECOND, b"a"), gone);
    assert_eq!(take(&mut ledger, SECOND, b"b"), Ok(SECOND), "others are tried");
    // Grants for later times were taken back; the grant that had left was not.
    let number = ledger.latest();
    assert_eq!(at.map(|at| ledger.is_outdated_of_key(b"a", number - 1, at)), [false, true, true]);
    let known = ledger.keys_at(SECOND).into_iter().find(|key| *key.name == *b"a").unwrap();
    assert_eq!(known.given_up_until, Some(3_601 * SECOND));
    let hour = 3_600 * SECOND;
    assert_eq!(take(&mut ledger, SECOND + hour - 1, b"a"), gone);
    assert_eq!(take(&mut ledger, SECOND + hour, b"a"), Ok(SECOND + hour));
    // A new failure gives the key up at once.
    tried(&mut ledger, 2 * SECOND + hour, false, 1);
    assert_eq!(take(&mut ledger, 3 * SECOND + hour, b"a"), gone);
    let clear = Operation::Clear { anew: None, is_empty: false, number: 0, key: Some((*b"a").into()) };
    apply(&mut ledger, 3 * SECOND + hour, clear);
    assert_eq!(take(&mut ledger, 3 * SECOND + hour, b"a"), Ok(3 * SECOND + hour));
}

/// All commands of a bucket that only counts commands belong to one key.
#[test]
fn a_bucket_that_only_counts_commands_learns_and_pauses() {
    let (mut ledger, owner) = (Ledger::new(&Policy::from_lines("100/s,burst=1\njobs=99").unwrap(), 0, 0), [1, 1]);
    let take = |ledger: &mut Ledger, now, key| {
        let take = Take { key, ..Take::of(&[1]) };
        match ledger.apply(&Record { time: now, owner, sequence: 0, operation: Operation::Take(take) }) {
            Reply::Granted(grants) => grants[0],
            reply => panic!("{reply:?}"),
        }
    };
    let key = || Some(OfKey { learns: true, ..OfKey::of(NO_KEY.into()) });
    let before = [0; 20].map(|_| take(&mut ledger, 0, key()));
    let now = ledger.pass(100 * MILLISECOND);
    let start = ledger.pace_of(NO_KEY, now).start(now);
    let operation = Operation::Hold { until: 2 * SECOND, refused: vec![start], key: Some(NO_KEY.into()) };
    ledger.apply(&Record { time: now, owner, sequence: 0, operation });
    assert_eq!(ledger.paused_until(), Some(2 * SECOND));
    assert!(ledger.learned().is_some_and(|every| every > 10 * MILLISECOND));
    let left = before.iter().filter(|grant| !ledger.is_outdated_of_key(NO_KEY, grant.number, grant.at));
    assert_eq!(left.count(), 11, "grants for later times are taken back");
    // A single request without a key also waits.
    assert!(take(&mut ledger, now, None).at >= 2 * SECOND);
    assert!(ledger.keys_at(now).is_empty(), "it has no keys to show");
    assert_eq!(saved(&loaded(&saved(&ledger))), saved(&ledger));
}

/// Random requests for a few keys, for present and later times; some grants are given back. In the order of time, each
/// grant conforms to the limits of its key and to the overall limits.
#[test]
fn no_key_and_not_all_together_get_more_than_their_limits_allow() {
    for lines in ["50/s,burst=3\nper=f1\n3/s,burst=2", "9/s,window\nper=f1\n2/s,burst=1\n15/10s,window", "per=f1\n1/s"]
    {
        let mut chance = Chance(RandomSeed::new());
        let policy = Policy::from_lines(lines).unwrap();
        let (mut ledger, mut now, mut granted) = (Ledger::new(&policy, 0, 0), 0, BTreeMap::new());
        for _ in 0..rounds(4000) {
            now += if chance.one_in(30) { chance.below(SECOND) } else { chance.below(9 * MILLISECOND) };
            let record = |operation| Record { time: now, owner: [1, 1], sequence: 0, operation };
            let name: Box<[u8]> = [u8::try_from(chance.below(20)).unwrap()].into();
            if chance.one_in(9)
                && let Some((&number, _)) = granted.iter().next_back()
            {
                let Some((at, name)) = granted.remove(&number) else { continue };
                let key = Some(OfKey::of(name));
                let back = GiveBack { number, unused: vec![(at, [1].into())], key };
                if at > now {
                    ledger.apply(&record(Operation::GiveBack(vec![back])));
                } else {
                    granted.insert(number, (at, back.key.unwrap().name));
                }
                continue;
            }
            let key = Some(OfKey::of(name.clone()));
            let latest = now + chance.below(4 * SECOND);
            let take = Take { costs: [1].into(), latest, key, ..Take::default() };
            if let Reply::Granted(grants) = ledger.apply(&record(Operation::Take(take))) {
                granted.insert(grants[0].number, (grants[0].at, name));
            }
            for (number, (at, _)) in &mut granted {
                *at = ledger.time_of(*number).unwrap_or(*at);
            }
        }
        let mut times: Vec<_> = granted.into_values().collect();
        times.sort();
        let (mut all, mut keys) = (Limits::new(&policy, 0), BTreeMap::new());
        for (at, name) in &times {
            let key = keys.entry(name).or_insert_with(|| Limits::new(&policy.of_keys().unwrap().each, 0));
            for limits in [&mut all, key] {
                assert_eq!(limits.conforms_at(*at, 1).unwrap().0, *at, "{lines}");
                let _ = limits.charge(*at, [*at; 2], 1);
            }
        }
        assert!(times.len() > 20, "{}", times.len());
    }
}

/// The third unit waits. The units that the first gives back are available to a fourth, with and without a snapshot.
#[test]
fn units_given_back_to_a_key_count_alike_in_all_replicas() {
    let mut ledger = Ledger::new(&Policy::from_lines("per=f1\n1/s,burst=2").unwrap(), 0, 0);
    let take = Take { key: Some(OfKey::of(b"a"[..].into())), ..Take::of(&[1]) };
    let grants = [0; 3].map(|_| ledger.take(0, [1, 1], &take).unwrap());
    assert_eq!(grants.map(|grant| grant.at), [0, 0, SECOND]);
    let operation = Operation::GiveBack(vec![take.unused(&grants[0])]);
    ledger.apply(&Record { time: SECOND / 2, owner: [1, 1], sequence: 0, operation });
    let next = [loaded(&saved(&ledger)), ledger].map(|mut ledger| ledger.take(SECOND / 2, [1, 1], &take).unwrap().at);
    assert!(next[0] == next[1] && next[0] < 2 * SECOND, "{next:?}");
}

/// Units wait for long before their requests, and keys are forgotten meanwhile.
#[test]
fn costs_above_the_burst_of_a_key_keep_its_rate() {
    let mut chance = Chance(RandomSeed::new());
    for _ in 0..40 {
        let policy = Policy::from_lines("per=f1\n100/s,burst=1").unwrap();
        let mut ledger = Ledger::new(&policy, 0, 0);
        let (mut now, mut granted) = (0, BTreeMap::<u64, Vec<(Nanos, u64)>>::new());
        for _ in 0..400 {
            now += chance.below(40 * MILLISECOND);
            let (name, cost) = (chance.below(12), 1 + chance.below(15));
            let since = now.saturating_sub(chance.below(2 * SECOND));
            let of = OfKey { costs: [cost].into(), since, ..OfKey::of(name.to_le_bytes().into()) };
            let of = OfKey { latest: now + chance.below(100 * MILLISECOND), ..of };
            if let Ok(grant) = ledger.take(now, [1, 1], &Take { key: Some(of), ..Take::of(&[1]) }) {
                granted.entry(name).or_default().push((grant.at, cost));
            }
            ledger.pass(now);
        }
        assert!(granted.values().map(Vec::len).sum::<usize>() > 40);
        for grants in granted.values() {
            for first in 0..grants.len() {
                // The cost of the first grant was paid before it.
                let paid = grants[first + 1..].iter().scan(0, |sum, (at, cost)| {
                    *sum += cost;
                    Some((*at - grants[first].0, *sum))
                });
                for (time, cost) in paid {
                    assert!(cost * 10 * MILLISECOND <= time + 10 * MILLISECOND, "{cost} in {time}: {grants:?}");
                }
            }
        }
    }
}

#[test]
fn a_key_that_waits_for_its_own_limit_holds_up_no_other() {
    let policy = Policy::from_lines("10/s,burst=1\nper=f1\n1/min,burst=1").unwrap();
    let mut ledger = Ledger::new(&policy, 0, 0);
    let mut take = |now, name: &[u8]| {
        let key = Some(OfKey::of(name.into()));
        ledger.take(now, [1, 1], &Take { costs: [1].into(), latest: Nanos::MAX, key, ..Take::default() }).unwrap().at
    };
    assert_eq!(take(0, b"a"), 0);
    assert_eq!(take(0, b"a"), 60 * SECOND);
    assert_eq!([take(0, b"b"), take(0, b"c"), take(0, b"d")], [100, 200, 300].map(|time| time * MILLISECOND));
    assert_eq!(take(59_950 * MILLISECOND, b"e"), 60_100 * MILLISECOND, "the other keeps its time");
}

#[test]
fn requests_within_a_span_are_granted_together() {
    let mut ledger = Ledger::new(&Policy::from_lines("10/s,burst=1\nper=f1\n1/s,burst=1").unwrap(), 0, 0);
    let take = |name: &u8| {
        let key = OfKey::of([*name].into());
        Take { key: Some(key), ..Take::of(&[1]) }
    };
    // Another unit of the first key waits for its key alone.
    let operation = Operation::Several { takes: b"aabcdefg".iter().map(take).collect(), span: 250 * MILLISECOND };
    let record = Record { time: 0, owner: [1, 1], sequence: 1, operation };
    let Reply::Each(answers) = ledger.apply(&record) else { panic!("one for each") };
    let times: Vec<_> = answers.iter().map(|answer| answer.map(|grant| grant.at / MILLISECOND)).collect();
    let not_now = Err(Refusal::TooLong { wait: 0 });
    assert_eq!(times, [Ok(0), Ok(1000), Ok(100), Ok(200), Ok(300), not_now, not_now, not_now]);
}

fn take_name(ledger: &mut Ledger, now: Nanos, name: u64, cost: u64) -> Result<(), Refusal> {
    let key = Some(OfKey { costs: [cost].into(), ..OfKey::of(name.to_be_bytes().into()) });
    ledger.take(now, [1, 1], &Take { key, latest: now, ..Take::of(&[]) }).map(drop)
}

#[test]
fn at_most_so_many_keys_are_kept_and_new_ones_wait_for_room() {
    let policy = Policy::from_lines("per=f1\n1/s").unwrap();
    let mut ledger = Ledger::new(&policy, 0, 0);
    let mut take = |now, name: u64| {
        let key = Some(OfKey::of(name.to_le_bytes().into()));
        ledger.take(now, [1, 1], &Take { costs: [1].into(), latest: now, key, ..Take::default() }).map(drop)
    };
    assert_eq!((0..20_000).filter(|name| take(MILLISECOND, *name).is_ok()).count(), 10_000);
    let refused = Err(Refusal::TooLong { wait: 100 * MILLISECOND });
    assert_eq!(take(999 * MILLISECOND, 20_000), refused, "the table is swept ten times a second at most");
    assert_eq!(take(1002 * MILLISECOND, 20_000), Ok(()), "the others are fresh");
    // Keys with large windows are fewer.
    let mut ledger = Ledger::new(&Policy::from_lines("per=f1\n5000/h,window").unwrap(), 0, 0);
    assert_eq!((0..1000).filter(|name| take_name(&mut ledger, MILLISECOND, *name, 1).is_ok()).count(), 621);
    // A process that reads other keys than the limits allow takes the bucket for damaged.
    ledger.policy = Policy::from_lines("per=f1\n5000/h").unwrap();
    assert!(from_bytes::<Ledger>(&saved(&ledger)).is_none());
}

#[test]
fn as_many_run_as_may_until_one_ends_or_its_owner_is_gone() {
    let policy = Policy::from_lines("jobs=3\nper=f1\njobs=2").unwrap();
    let mut ledger = Ledger::new(&policy, 0, 0);
    let take = |ledger: &mut Ledger, owner: u64, name: &[u8]| {
        let key = Some(OfKey::of(name.into()));
        let take = Take { costs: [1].into(), latest: Nanos::MAX, key, ..Take::default() };
        ledger.take(0, [owner, 0], &take).map(|grant| grant.number)
    };
    let first = take(&mut ledger, 1, b"a").unwrap();
    let is_busy = |name: &[u8], with| ledger.is_busy(name, with);
    assert_eq!([[0, 0], [1, 0], [0, 1], [0, 2]].map(|with| is_busy(b"a", with)), [false, true, false, true]);
    assert!(!is_busy(b"b", [1, 1]), "one of two runs, and two of three");
    assert!(take(&mut ledger, 2, b"a").is_ok());
    assert_eq!(take(&mut ledger, 3, b"a"), Err(Refusal::Busy), "two of a key");
    assert!(take(&mut ledger, 3, b"b").is_ok());
    assert_eq!(take(&mut ledger, 3, b"c"), Err(Refusal::Busy), "three in all");
    let apply = |ledger: &mut Ledger, operation| {
        ledger.apply(&Record { time: 0, owner: [9, 9], sequence: 0, operation });
    };
    apply(&mut ledger, Operation::End { number: first });
    assert!(take(&mut ledger, 3, b"a").is_ok());
    apply(&mut ledger, Operation::Gone { owner: [3, 0], seen: 0 });
    assert_eq!(ledger.running(), 1);
    assert!(take(&mut ledger, 1, b"a").is_ok() && take(&mut ledger, 1, b"b").is_ok());
    // An owner that has sent an operation since is not gone.
    let mut ledger = Ledger::new(&Policy::from_lines("jobs=3").unwrap(), 0, 0);
    let _ = ledger.take(0, [1, 1], &Take::of(&[])).unwrap();
    ledger.apply(&Record { time: 5, owner: [1, 1], sequence: 0, operation: Operation::Here });
    let running = [3, 5].map(|seen| {
        ledger.change(5, &Operation::Gone { owner: [1, 1], seen });
        ledger.running()
    });
    assert_eq!(running, [1, 0]);
}

/// The ledger kept the times of 64 waiters only. All other waiters requested again for the times that they were
/// promised at first.
#[test]
fn a_waiter_whose_time_has_come_unnoticed_owes_no_old_promise() {
    let mut ledger = Ledger::new(&policy(&["1/h"]), 0, 0);
    let apply = |ledger: &mut Ledger, time, operation| {
        ledger.apply(&Record { time, owner: [9, 9], sequence: 0, operation });
    };
    let grants: Vec<Grant> = (0..200).map(|owner| ledger.take(0, [owner, 0], &Take::of(&[1])).unwrap()).collect();
    apply(&mut ledger, SECOND, Operation::Set { policy: policy(&["100/s"]), fresh: vec![false] });
    ledger.pass(6 * SECOND);
    assert!(grants.iter().all(|grant| ledger.time_of(grant.number).is_none_or(|at| at < 5 * SECOND)));
    assert_eq!(
        grants.iter().filter(|grant| ledger.time_of(grant.number).is_none()).count(),
        1,
        "the first did not wait"
    );
    assert!(grants.iter().all(|grant| ledger.again_from(grant) == 0));
    apply(&mut ledger, 7 * SECOND, Operation::Clear { anew: None, is_empty: false, number: 0, key: None });
    assert_eq!(ledger.again_from(&grants[7]), grants[7].at, "a removed waiter keeps its time");
    let anew = Some(policy(&["100/s"]));
    apply(&mut ledger, 7 * SECOND, Operation::Clear { anew, is_empty: false, number: 1 << 60, key: None });
    assert_eq!(loaded(&saved(&ledger)).again_from(&grants[7]), 0, "a new bucket owes it nothing");
}

#[test]
fn a_wait_that_is_given_back_or_gone_was_none() {
    let mut ledger = Ledger::new(&policy(&["1/min"]), 0, 0);
    let apply = |ledger: &mut Ledger, time, operation| {
        ledger.apply(&Record { time, owner: [9, 9], sequence: 0, operation });
    };
    let take = |ledger: &mut Ledger, owner| ledger.take(0, [owner, 0], &Take::of(&[1])).unwrap();
    let [_, left, stays, _] = [1, 2, 3, 4].map(|owner| take(&mut ledger, owner));
    let back = GiveBack { number: left.number, unused: vec![(left.at, [1].into())], key: None };
    apply(&mut ledger, 3 * SECOND, Operation::GiveBack(vec![back]));
    apply(&mut ledger, 3 * SECOND, Operation::Gone { owner: [4, 0], seen: Nanos::MAX });
    assert_eq!(ledger.counts_at(3 * SECOND).waited, 0);
    let moved_up = [ledger.counts_at(300 * SECOND).waited, stays.at];
    ledger.pass(300 * SECOND);
    assert_eq!(moved_up, [ledger.counts_at(300 * SECOND).waited, 120 * SECOND]);
    assert_eq!(moved_up[0], 60 * SECOND, "it moved up");
}

#[test]
fn a_settled_grant_of_a_key_equals_a_charge_of_the_real_cost() {
    let policy = Policy::from_lines("1000/h,burst=1000\nper=f1\n100/h,burst=100").unwrap();
    let mut ledger = Ledger::new(&policy, 0, 0);
    let of = |cost: u64| OfKey { costs: [cost].into(), ..OfKey::of(b"a"[..].into()) };
    let take = |ledger: &mut Ledger, now, cost, open| {
        let take = Take { costs: [cost].into(), latest: Nanos::MAX, open, key: Some(of(cost)), ..Take::default() };
        ledger.take(now, [1, 1], &take).unwrap()
    };
    let first = take(&mut ledger, 5 * SECOND, 80, Some(50));
    let _ = take(&mut ledger, 6 * SECOND, 10, None);
    let (charged, real, key) = ([80].into(), [20].into(), Some((of(80), [20].into())));
    let operation = Operation::Settle { number: first.number, at: first.at, charged, real, key, round_trip: 0 };
    ledger.apply(&Record { time: 7 * SECOND, owner: [1, 1], sequence: 0, operation });
    assert_eq!((ledger.keys_at(7 * SECOND)[0].left[0], ledger.limits().left(7 * SECOND, 0)), (70, Some(970)));
}

/// The owner learns of the new times at once, other owners when they next read the log.
#[test]
fn what_is_settled_moves_up_those_that_wait() {
    let mut ledger = Ledger::new(&policy(&["10/s,burst=10"]), 0, 0);
    let mut take = |owner, open| {
        let take = Take { open, latest: Nanos::MAX, ..Take::of(&[10]) };
        ledger.take(0, owner, &take).unwrap()
    };
    let (first, soon) = (take([1, 1], Some(50 * MILLISECOND)), Some(50 * MILLISECOND));
    let waiting = [([1, 1], soon), ([2, 2], soon), ([3, 3], None)].map(|(owner, open)| take(owner, open));
    assert_eq!(waiting.map(|grant| grant.at / SECOND), [1, 2, 3]);
    let settle = |grant: &Grant, real: u64, round_trip| {
        let (number, at, charged, real) = (grant.number, grant.at, [10].into(), [real].into());
        Operation::Settle { number, at, charged, real, key: None, round_trip }
    };
    let mut apply = |time, owner, operation| {
        ledger.apply(&Record { time, owner, sequence: 0, operation });
        waiting.map(|grant| ledger.time_of(grant.number).unwrap() / MILLISECOND)
    };
    assert_eq!(apply(100 * MILLISECOND, [1, 1], settle(&first, 0, 20 * MILLISECOND)), [120, 1120, 2120]);
    assert_eq!(apply(200 * MILLISECOND, [1, 1], settle(&waiting[0], 1, 0)), [120, 250, 1250], "the first has left");
}

/// Whether the first grant, which waits for half a second, is still valid after the operation, and the number of
/// running commands.
fn after(operation: &Operation) -> (bool, usize) {
    let mut ledger = Ledger::new(&Policy::from_lines("2/s,burst=1\nper=f1\njobs=9").unwrap(), 0, 0);
    let of = OfKey::of(b"a"[..].into());
    let take = Take { key: Some(of), ..Take::of(&[1]) };
    let grants = [0; 4].map(|_| ledger.take(0, [1, 1], &take).unwrap());
    let (time, owner) = (SECOND / 4, [2, 2]);
    ledger.apply(&Record { time, owner, sequence: 0, operation: operation.clone() });
    (!ledger.is_outdated_of_key(b"a", grants[1].number, grants[1].at), ledger.running())
}

#[test]
fn only_a_pause_of_a_key_takes_back_its_grants() {
    let key = || Some(b"a"[..].into());
    assert_eq!(after(&Operation::Resume { key: key() }), (true, 4));
    let clear = |key| Operation::Clear { anew: None, is_empty: false, number: 0, key };
    assert_eq!(after(&clear(key())), (true, 2), "those that wait for a second or longer join again");
    assert_eq!(after(&clear(None)), (true, 2));
    assert_eq!(after(&Operation::Hold { until: 9 * SECOND, refused: Vec::new(), key: key() }), (false, 1));
}

#[test]
fn the_bucket_of_a_key_is_empty_after_its_pause() {
    let mut ledger = Ledger::new(&Policy::from_lines("per=f1\n1/s,burst=5").unwrap(), 0, 0);
    let left = |ledger: &Ledger, now| ledger.keys_at(now)[0].left[0];
    let apply = |ledger: &mut Ledger, time, operation| {
        ledger.apply(&Record { time, owner: [1, 1], sequence: 0, operation });
    };
    apply(&mut ledger, 0, Operation::Hold { until: 9 * SECOND, refused: Vec::new(), key: Some(b"a"[..].into()) });
    assert_eq!([9, 11].map(|second| left(&ledger, second * SECOND)), [0, 2]);
    let of = OfKey { costs: [2].into(), ..OfKey::of(b"a"[..].into()) };
    let take = Take { key: Some(of), ..Take::of(&[2]) };
    let grant = ledger.take(11 * SECOND, [1, 1], &take).unwrap();
    assert_eq!((grant.at, left(&ledger, 11 * SECOND)), (11 * SECOND, 0));
    apply(&mut ledger, 11 * SECOND, Operation::GiveBack(vec![take.unused(&grant)]));
    assert_eq!(left(&ledger, 11 * SECOND), 2);
}

fn apply(ledger: &mut Ledger, time: Nanos, operation: Operation) {
    ledger.apply(&Record { time, owner: [1, 1], sequence: 0, operation });
}

fn key_of(name: u8, cost: u64) -> OfKey {
    OfKey { costs: [cost].into(), ..OfKey::of([name].into()) }
}

fn take_of(name: u8, cost: u64) -> Take {
    Take { key: Some(key_of(name, cost)), open: Some(50), latest: Nanos::MAX, ..Take::of(&[]) }
}

fn settle_of(grant: &Grant, [charged, real]: [u64; 2]) -> Operation {
    let key = Some((key_of(b'a', charged), [real].into()));
    Operation::Settle { number: grant.number, at: grant.at, charged: [].into(), real: [].into(), key, round_trip: 0 }
}

#[test]
fn giving_back_does_not_change_a_settled_unit_of_the_key() {
    let mut ledger = Ledger::new(&Policy::from_lines("per=f1\n10/s,burst=100,cost=f2").unwrap(), 0, 0);
    let first = ledger.take(1, [1, 1], &take_of(b'a', 100)).unwrap();
    let other = ledger.take(SECOND, [1, 1], &take_of(b'a', 5)).unwrap();
    apply(&mut ledger, SECOND, Operation::GiveBack(vec![take_of(b'a', 5).unused(&other)]));
    apply(&mut ledger, 4 * SECOND + 1, settle_of(&first, [100, 60]));
    assert_eq!(ledger.keys_at(4 * SECOND + 1)[0].left[0], 80);
}

#[test]
fn what_a_unit_cost_more_is_owed_even_if_its_key_was_forgotten() {
    let mut ledger = Ledger::new(&Policy::from_lines("per=f1\n10/s,burst=10,cost=f2").unwrap(), 0, 0);
    let first = ledger.take(1, [1, 1], &take_of(b'a', 10)).unwrap();
    for name in b"bcde" {
        let _ = ledger.take(64 * SECOND, [1, 1], &take_of(*name, 1)).unwrap();
    }
    assert!(!ledger.keys_at(64 * SECOND).iter().any(|key| *key.name == *b"a"));
    apply(&mut ledger, 66 * SECOND, settle_of(&first, [10, 5000]));
    assert_eq!(ledger.keys_at(66 * SECOND)[0].left[0], 10 - 4990);
}

#[test]
fn an_ended_pause_has_emptied_the_bucket_of_its_key() {
    let mut ledger = Ledger::new(&Policy::from_lines("per=f1\n1/h,burst=5").unwrap(), 0, 0);
    let grant = ledger.take(1, [1, 1], &take_of(b'a', 1)).unwrap();
    let hold = Operation::Hold { until: SECOND, refused: Vec::new(), key: Some(b"a"[..].into()) };
    apply(&mut ledger, 2, hold);
    apply(&mut ledger, 2 * SECOND, Operation::GiveBack(vec![take_of(b'a', 1).unused(&grant)]));
    assert_eq!(ledger.keys_at(2 * SECOND)[0].left[0], 0, "as without keys: the grant was before the pause");
    apply(&mut ledger, 2 * SECOND, Operation::Resume { key: Some(b"a"[..].into()) });
    assert_eq!(ledger.keys_at(2 * SECOND)[0].left[0], 0);
}

#[test]
fn a_pause_of_a_key_pauses_all_only_without_keys() {
    let mut ledger = Ledger::new(&Policy::from_lines("5/s,burst=5\njobs=9").unwrap(), 0, 0);
    apply(&mut ledger, 2, Operation::Hold { until: SECOND, refused: Vec::new(), key: Some(b"(none)"[..].into()) });
    assert_eq!(ledger.paused_until(), Some(SECOND));
    // This process has not yet read that the bucket has no keys any more.
    let mut ledger = Ledger::new(&policy(&["5/s,burst=5"]), 0, 0);
    apply(&mut ledger, 2, Operation::Hold { until: SECOND, refused: Vec::new(), key: Some(b"a"[..].into()) });
    assert_eq!(ledger.paused_until(), None);
}

#[test]
fn a_new_limit_of_jobs_starts_without_earlier_commands() {
    let mut ledger = Ledger::new(&Policy::from_lines("5/s,burst=5\njobs=1").unwrap(), 0, 0);
    let _ = ledger.take(1, [1, 1], &Take::of(&[1])).unwrap();
    assert_eq!(ledger.running(), 1);
    for lines in ["5/s,burst=5", "5/s,burst=5\njobs=1"] {
        ledger.set(2, &Policy::from_lines(lines).unwrap(), &[]);
    }
    assert_eq!(ledger.running(), 0);
}

#[test]
fn however_many_wait_to_be_settled_the_ledger_can_be_read() {
    let mut ledger = Ledger::new(&policy(&["1/h,burst=1"]), 0, 0);
    for _ in 0..3000 {
        let _ = ledger.take(1, [1, 1], &Take { open: Some(50), latest: Nanos::MAX, ..Take::of(&[1]) }).unwrap();
    }
    assert_eq!(saved(&loaded(&saved(&ledger))), saved(&ledger));
}

/// Law 2 for all processes that share a bucket. A unit of the key was reserved while a server had slowed it down. Then
/// the pace was forgiven. Processes that had read the whole log kept the distance, and processes that had read a
/// snapshot did not.
#[test]
fn a_changed_pace_is_the_same_after_a_snapshot() {
    let mut world = World::new(3_980_016_061_289_808_242);
    (0..40).for_each(|_| world.step());
    for place in 0..world.clients.len() {
        world.read(place);
    }
}

/// Beyond `MAX_ENTRIES`, a process that had read the log charged a request at its own time. A process that had read a
/// snapshot charged it together with the previous request.
#[test]
fn beyond_the_most_entries_the_log_and_a_snapshot_mean_the_same() {
    for limits in [&["5/10s,window"][..], &["10/s,burst=1", "30/7s,window"], &["10/s,burst=2"]] {
        let (mut ledger, take) = (Ledger::new(&policy(limits), 0, 0), Take::of(&[1]));
        for _ in 0..MAX_ENTRIES + 10 {
            let _ = ledger.take(0, [1, 1], &take);
        }
        assert_eq!(loaded(&saved(&ledger)).take(0, [1, 1], &take), ledger.take(0, [1, 1], &take), "{limits:?}");
    }
}

/// A pause comes before a lease whose last units are for later times. When these were given back, a process that had
/// read the log charged the rest of the lease behind the pause. So a unit could leave within the pause.
#[test]
fn a_lease_cut_to_before_a_pause_keeps_the_pause() {
    let mut ledger = Ledger::new(&policy(&["10/s,burst=1", "100/min,window"]), 0, 0);
    let runs = ledger.lease(0, [1, 1], &Ask { waiting: 6, span: SECOND, ..Ask::default() }).unwrap();
    ledger.hold_until(0, 450 * MILLISECOND);
    let unused = vec![(runs[5].at, Box::from([1]))];
    ledger.give_back(0, &GiveBack { number: runs[5].number, unused, key: None });
    assert_eq!(ledger.limits().at, 450 * MILLISECOND);
    assert_eq!(ledger.take(0, [2, 2], &Take::of(&[0, 1])).unwrap().at, 450 * MILLISECOND);
    assert!(saved(&loaded(&saved(&ledger))) == saved(&ledger));
}

/// Beyond `MAX_ENTRIES`, requests are charged together. When the latest of them was given back or settled, the charges
/// of the others went with it, and later units left too early.
#[test]
fn a_request_charged_with_others_gives_back_none_of_theirs() {
    let take = Take::of(&[1]);
    let (charged, real) = (take.costs.clone(), Box::from([0]));
    let settle = |number, at| Operation::Settle { number, at, charged, real, key: None, round_trip: 0 };
    let mut ledger = Ledger::new(&policy(&["10/s,burst=1"]), 0, 0);
    let grants = [(); MAX_ENTRIES + 10].map(|()| ledger.take(0, [1, 1], &take).unwrap());
    let latest = grants[MAX_ENTRIES + 9];
    for operation in [Operation::GiveBack(vec![take.unused(&latest)]), settle(latest.number, latest.at)] {
        let mut ledger = ledger.clone();
        apply(&mut ledger, 0, operation);
        let next = ledger.take(0, [1, 1], &take).unwrap();
        assert!(next.at >= latest.at, "{} of the others are granted again", (latest.at - next.at) / (SECOND / 10));
    }
}

/// Requests with an earliest time were inserted before later entries, whatever the number of the entries. Above
/// 2 · `MAX_ENTRIES`, a process that read the snapshot took it for damaged.
#[test]
fn a_ledger_with_the_most_entries_can_be_read() {
    let mut ledger = Ledger::new(&policy(&["1/h,burst=1", "10/s,burst=1"]), 0, 0);
    for _ in 0..=MAX_ENTRIES {
        let _ = ledger.take(0, [1, 1], &Take::of(&[1, 0])).unwrap();
    }
    for _ in 0..=MAX_ENTRIES {
        let _ = ledger.take(0, [1, 1], &Take { from: 1, ..Take::of(&[0, 1]) }).unwrap();
    }
    assert!(saved(&loaded(&saved(&ledger))) == saved(&ledger));
}

/// A forged bucket can have any numbers.
#[test]
fn grants_after_the_largest_number_overflow_nothing() {
    let mut ledger = Ledger::new(&policy(&["10/s,burst=9"]), 0, u64::MAX);
    ledger.counts.refused = u64::MAX;
    assert_eq!(
        ledger.take(0, [1, 1], &Take { latest: 0, ..Take::of(&[99]) }),
        Err(Refusal::TooLong { wait: 9 * SECOND })
    );
    let anew = Some(policy(&["10/s,burst=9"]));
    apply(&mut ledger, 0, Operation::Clear { anew, is_empty: false, number: u64::MAX, key: None });
    let runs = ledger.lease(0, [1, 1], &Ask { waiting: 2, span: 0, ..Ask::default() }).unwrap();
    assert_eq!(runs[0].number, u64::MAX);
    let several = Operation::Several { takes: vec![Take::of(&[1]); 2], span: 0 };
    let record = Record { time: 0, owner: [1, 1], sequence: 1, operation: several };
    let [first, again] = [(); 2].map(|()| ledger.apply(&record));
    assert!(matches!((first, again), (Reply::Each(first), Reply::Each(again)) if first.len() == again.len()));
}

#[test]
fn limits_rest_once_all_is_paid_and_all_keys_are_fresh() {
    let mut ledger = Ledger::new(&policy(&["1/s,burst=5"]), 0, 0);
    let _ = ledger.take(0, [1, 1], &Take::of(&[5])).unwrap();
    assert_eq!(ledger.rested_at(), 5 * SECOND);
    let mut ledger = Ledger::new(&Policy::from_lines("9/s,burst=9\nper=f1\n1/min,burst=1").unwrap(), 7, 0);
    assert_eq!(ledger.keys_made(), 7);
    let take = Take { key: Some(OfKey::of(b"a"[..].into())), ..Take::of(&[1]) };
    let _ = ledger.take(7, [1, 1], &take).unwrap();
    assert!(ledger.rested_at() >= 60 * SECOND + 7, "{}", ledger.rested_at());
}

#[test]
fn a_key_has_a_time_of_its_own_and_waiters() {
    let mut ledger = Ledger::new(&Policy::from_lines("9/s,burst=9\nper=f1\n1/2s,burst=1").unwrap(), 0, 0);
    let of = |name: &[u8]| OfKey::of(name.into());
    assert_eq!(ledger.latest_of_old(0), Some(0), "there is no grant");
    for owner in [1, 2, 2] {
        let take = Take { key: Some(of(b"a")), ..Take::of(&[1]) };
        let _ = ledger.take(SECOND, [owner, 0], &take).unwrap();
    }
    assert_eq!(ledger.own_time(SECOND, &of(b"a")), Some(7 * SECOND));
    assert_eq!(ledger.own_time(SECOND, &of(b"b")), Some(SECOND));
    let early = OfKey { latest: 6 * SECOND, ..of(b"a") };
    let refused = ledger.take(SECOND, [3, 0], &Take { key: Some(early), ..Take::of(&[1]) });
    assert_eq!(refused.map(drop), Err(Refusal::TooLong { wait: 6 * SECOND }), "its key's time is too late");
    let waiting = |now| ledger.keys_at(now).iter().map(|key| key.waiting).sum::<usize>();
    assert_eq!([1, 3, 4, 5].map(|second| waiting(second * SECOND)), [2, 1, 1, 0]);
    let latest = [SECOND, 6 * SECOND, 6 * SECOND + 1].map(|now| ledger.latest_of_old(now));
    assert_eq!(latest, [None, None, Some(3)], "a second after the time of the latest grant");
    assert_eq!(Ledger::new(&policy(&["1/s"]), 0, 0).own_time(3, &of(b"a")), Some(3));
    // A grant names the limit that binds.
    let policy = Policy::from_lines("9/s,burst=9\nper=f1\n9/s,burst=9\n1/2s,burst=1").unwrap();
    let mut ledger = Ledger::new(&policy, 0, 0);
    let take = Take { key: Some(OfKey::of(b"a"[..].into())), ..Take::of(&[1]) };
    let bound = [0; 2].map(|now| ledger.take(now, [1, 1], &take).unwrap().bound_by);
    assert_eq!(bound, [None, Some(2)], "the limits of keys come after the overall limit");
}

#[test]
fn an_owner_waits_until_its_time() {
    let mut ledger = Ledger::new(&policy(&["1/2s,burst=1"]), 0, 0);
    for owner in [1, 2] {
        let _ = ledger.take(0, [owner, 0], &Take::of(&[1])).unwrap();
    }
    let waits = |owner, now| ledger.waits([owner, 0], now);
    assert_eq!([waits(1, 0), waits(2, 0), waits(2, 2 * SECOND - 1), waits(2, 2 * SECOND)], [false, true, true, false]);
    assert_eq!([0, 2 * SECOND].map(|now| ledger.waiting(now).len()), [1, 0]);
}

/// A ledger with a lease and two that wait.
fn with_entries() -> Ledger {
    let mut ledger = Ledger::new(&policy(&["9/s,burst=1"]), 0, 0);
    let lease = Ask { waiting: 5, span: SECOND, ..Ask::default() };
    let _ = ledger.lease(0, [1, 1], &lease).unwrap();
    for owner in [2, 3] {
        let _ = ledger.take(0, [owner, 0], &Take::of(&[1])).unwrap();
    }
    ledger
}

/// The times of the lease, which is the first entry.
fn leased(ledger: &mut Ledger) -> &mut Vec<(Nanos, u64)> {
    let Charge::Runs { runs } = &mut ledger.entries[0].charge else { panic!("no lease") };
    runs
}

type Change = fn(&mut Ledger);

#[test]
fn what_no_ledger_can_hold_is_refused() {
    let reads = |change: Change| {
        let mut ledger = with_entries();
        change(&mut ledger);
        from_bytes::<Ledger>(&saved(&ledger)).is_some()
    };
    let repeat = |ledger: &mut Ledger, count| {
        let last = ledger.entries.back().unwrap().clone();
        ledger.entries.resize(count, last);
    };
    assert!(reads(|_| {}));
    let mut ledger = with_entries();
    for (count, is_read) in [(2 * MAX_ENTRIES, true), (2 * MAX_ENTRIES + 1, false)] {
        repeat(&mut ledger, count);
        assert_eq!(from_bytes::<Ledger>(&saved(&ledger)).is_some(), is_read, "{count} entries");
    }
    let forged: [(&str, Change); 11] = [
        ("no limits", |ledger| ledger.policy = Policy::default()),
        ("a limit without a state", |ledger| ledger.base.states.clear()),
        ("entries without order", |ledger| ledger.entries.swap(1, 2)),
        ("a grant before its request", |ledger| ledger.entries[1].requested = ledger.entries[1].at + 1),
        ("a lease of nothing", |ledger| leased(ledger).clear()),
        ("a lease that ends elsewhere", |ledger| leased(ledger).truncate(1)),
        ("a lease without order", |ledger| leased(ledger).swap(0, 1)),
        ("a lease that is too long", |ledger| {
            let first = leased(ledger)[0];
            leased(ledger).splice(0..0, [first; MAX_RUNS]);
        }),
        ("no keys", |ledger| ledger.policy = Policy::from_lines("9/s,burst=1\nper=f1\n9/s").unwrap()),
        ("too many that moved", |ledger| ledger.moved.extend(std::iter::repeat_n((1, 1), MAX_MOVED + 1))),
        ("too many requests", |ledger| {
            let recent = Recent { owner: [1, 1], sequence: 1, number: 1, granted: 0, at: 1 };
            ledger.recent.extend(std::iter::repeat_n(recent, MAX_RECENT + 1));
        }),
    ];
    for (name, change) in forged {
        assert!(!reads(change), "{name}");
    }
}

fn settle_at(grant: &Grant, [charged, real]: [u64; 2]) -> Operation {
    let (charged, real) = ([charged].into(), [real].into());
    Operation::Settle { number: grant.number, at: grant.at, charged, real, key: None, round_trip: 0 }
}

#[test]
fn a_unit_without_a_cost_is_repeated_and_settled_like_others() {
    let mut ledger = Ledger::new(&policy(&["1/s"]), 0, 0);
    let operation = Operation::Take(Take::of(&[0]));
    let record = Record { time: SECOND, owner: [1, 1], sequence: 1, operation };
    let reply = ledger.apply(&record);
    let Reply::Granted(grants) = &reply else { panic!("{reply:?}") };
    assert_eq!((grants[0].at, grants[0].number), (SECOND, 0));
    apply(&mut ledger, SECOND, Operation::Hold { until: 9 * SECOND, refused: vec![], key: None });
    assert_eq!(ledger.apply(&record), reply);
    // It owes 20 units, and 8 seconds of the pause have paid for them and for the first unit of the bucket.
    apply(&mut ledger, SECOND, settle_at(&grants[0], [0, 20]));
    assert_eq!(ledger.next_time(SECOND), Some(21 * SECOND));
    // A waiter whose real cost is 0 no longer waits.
    let mut ledger = Ledger::new(&policy(&["1/s"]), 0, 0);
    let take = Take { open: Some(50), ..Take::of(&[1]) };
    let [_, waits] = [0; 2].map(|now| ledger.take(now, [1, 1], &take).unwrap());
    assert!(waits.is_entry() && ledger.waiting(0).len() == 1);
    apply(&mut ledger, 0, settle_at(&waits, [1, 0]));
    assert!(ledger.entries.is_empty());
    assert_eq!(ledger.next_time(0), Some(SECOND));
}

/// Five units of one lease, at 0 to 400 ms.
fn leased_five(ledger: &mut Ledger) -> Vec<Grant> {
    ledger.lease(0, [1, 1], &Ask { waiting: 5, span: SECOND, ..Ask::default() }).unwrap()
}

#[test]
fn units_of_a_lease_that_have_left_stay_charged() {
    let mut ledger = Ledger::new(&policy(&["10/s,burst=1"]), 0, 0);
    let runs = leased_five(&mut ledger);
    let [next, last] = [500, 400].map(|time| time * MILLISECOND);
    assert_eq!((ledger.next_time(0), runs[4].at), (Some(next), last));
    // Another process leases as well. Only the latest lease can be given back in part.
    let mut with_later = ledger.clone();
    let later = with_later.lease(0, [2, 2], &Ask { waiting: 1, span: SECOND, ..Ask::default() }).unwrap();
    let unused = vec![(last, Box::from([1]))];
    with_later.give_back(0, &GiveBack { number: runs[4].number, unused, key: None });
    assert_eq!((later[0].at, with_later.next_time(0)), (next, Some(next + 100 * MILLISECOND)));
    // The owner is gone: two of its units have not left.
    let mut gone = ledger.clone();
    apply(&mut gone, 250 * MILLISECOND, Operation::Gone { owner: [1, 1], seen: 250 * MILLISECOND });
    assert_eq!(gone.next_time(250 * MILLISECOND), Some(next));
    // The time of the last unit has come.
    ledger.settle_past(last);
    assert!(ledger.entries.is_empty() && saved(&loaded(&saved(&ledger))) == saved(&ledger));
}

/// Only the latest lease can be given back in part. What is given back of an earlier one stays charged.
#[test]
fn a_lease_before_another_gives_nothing_back_before_its_time() {
    let mut ledger = Ledger::new(&policy(&["10/s,burst=2"]), 0, 0);
    let runs = leased_five(&mut ledger);
    let later = ledger.lease(0, [2, 2], &Ask { waiting: 1, span: SECOND, ..Ask::default() }).unwrap();
    assert_eq!((runs[3].at, later[0].at), (300 * MILLISECOND, 400 * MILLISECOND));
    let unused = runs[2..].iter().map(|run| (run.at, [1].into())).collect();
    let back = GiveBack { number: runs[0].number(), unused, key: None };
    apply(&mut ledger, 150 * MILLISECOND, Operation::GiveBack(vec![back]));
    let next = ledger.take(160 * MILLISECOND, [3, 3], &Take::of(&[1])).unwrap();
    assert_eq!((next.at, ledger.counts.given_back), (500 * MILLISECOND, 0));
}

#[test]
fn a_stream_leases_what_it_has_missed_and_no_more() {
    let mut ledger = Ledger::new(&policy(&["1000/s,burst=1"]), 0, 0);
    let lease = |ledger: &mut Ledger, owner, span| {
        let ask = Ask { waiting: 1000, span, ..Ask::default() };
        ledger.lease(0, owner, &ask).unwrap().iter().map(|run| run.units).sum::<u64>()
    };
    let [far, near] = [[1, 1], [2, 2]];
    for _ in 0..2 {
        lease(&mut ledger, far, 40 * MILLISECOND);
    }
    assert_eq!(lease(&mut ledger, near, 0), 1, "it is new");
    lease(&mut ledger, far, 40 * MILLISECOND);
    let behind = ledger.shares.turn(0, near).behind;
    assert!(behind > 10, "{behind}");
    assert_eq!(lease(&mut ledger, near, 0), behind);
}

/// Among many keys that are used up for an hour, one is fresh again after a second.
#[test]
fn a_full_table_waits_for_the_first_key_that_is_fresh_again() {
    let mut ledger = Ledger::new(&Policy::from_lines("per=f1\n1/s,burst=3600").unwrap(), 0, 0);
    for name in 0..10_000 {
        assert_eq!(take_name(&mut ledger, MILLISECOND, name, if name == 5000 { 1 } else { 3600 }), Ok(()));
    }
    let [now, fresh] = [500, 1001].map(|time| time * MILLISECOND);
    assert_eq!(take_name(&mut ledger, now, 10_000, 1), Err(Refusal::TooLong { wait: fresh - now }));
    assert_eq!(ledger.next_time(now), Some(fresh));
    assert_eq!(take_name(&mut ledger, fresh, 10_000, 1), Ok(()));
    let waited = OfKey { since: 0, ..OfKey::of(5000_u64.to_be_bytes().into()) };
    assert_eq!(ledger.keys.as_ref().unwrap().since(2 * SECOND, &waited), fresh, "no rate of before then");
}

/// The pause, the wait and the number of waiters of each key that is shown.
fn shown(ledger: &Ledger, now: Nanos) -> Vec<(char, Option<Nanos>, Option<Nanos>, usize)> {
    let keys = ledger.keys_at(now).into_iter();
    keys.map(|key| (key.name[0].into(), key.paused_until, key.wait, key.waiting)).collect()
}

#[test]
fn keys_are_shown_with_their_waits_until_they_are_as_new() {
    let mut ledger = Ledger::new(&Policy::from_lines("per=f1\nfails=9\n1/2s,burst=1").unwrap(), 0, 0);
    for name in [b'a', b'a', b'd'] {
        let take = Take { key: Some(OfKey::of([name].into())), ..Take::of(&[1]) };
        let _ = ledger.take(SECOND, [1, 1], &take).unwrap();
    }
    apply(&mut ledger, SECOND, Operation::Tried { key: b"b"[..].into(), succeeded: false, failed: 3 });
    apply(&mut ledger, SECOND, Operation::Hold { until: 5 * SECOND, refused: vec![], key: Some(b"c"[..].into()) });
    let [a, b] = [('a', None, Some(4 * SECOND), 1), ('b', None, Some(0), 0)];
    let [c, d] = [('c', Some(5 * SECOND), Some(6 * SECOND), 0), ('d', None, Some(2 * SECOND), 0)];
    assert_eq!(shown(&ledger, SECOND), [a, b, c, d]);
    let now = ledger.pass(5 * SECOND);
    assert_eq!(shown(&ledger, now), [b, ('c', None, Some(2 * SECOND), 0)]);
    let now = ledger.pass(7 * SECOND);
    assert_eq!(shown(&ledger, now), [b], "it has failed");
    apply(&mut ledger, now, Operation::Clear { anew: None, is_empty: false, number: 0, key: None });
    assert_eq!((shown(&ledger, now), ledger.failed(b"b")), (vec![], 0));
}
