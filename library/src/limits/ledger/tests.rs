use super::core::MOST;
use super::*;
use crate::clock::Nanos;
use crate::clock::{MILLISECOND, SECOND};
use crate::limits::grant::{Grant, LOOK, Refusal};
use crate::limits::pace::{Served, Start};
use crate::limits::policy::Policy;
use crate::limits::together::Limits;
use crate::limits::{from_bytes, to_bytes};
use proptest::prelude::*;
use std::collections::BTreeMap;

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
    grants: Vec<Granted>,
}

/// A grant, and what was charged.
type Granted = (Grant, Box<[u64]>, Option<OfKey>);

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
        if self.limits > 0 && self.chance.one_in(3) {
            (0..self.limits).map(|_| self.chance.below(4)).collect()
        } else {
            [one].into()
        }
    }

    /// One of few keys, at a cost of its own.
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
            // It dies: others notice.
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
            (1..=6, Some((grant, costs, key))) => {
                let (number, unused) = (grant.number, vec![(grant.at, costs)]);
                let back = GiveBack { number, unused, key };
                if self.chance.one_in(4) { Operation::Late(vec![back]) } else { Operation::GiveBack(vec![back]) }
            }
            (7..=9, Some((grant, charged, key))) => {
                let (real, of_key) = (self.costs(), self.key().map_or([2].into(), |key| key.costs));
                let key = key.map(|key| (key, of_key));
                Operation::Settle { number: grant.number, at: grant.at, charged, real, key }
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
                    Take { costs, latest, key: world.key(), is_open: world.chance.one_in(3), ..Take::default() }
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
                let (is_open, key) = (self.chance.one_in(3), self.key());
                let served = self.served(place, key.as_ref());
                Operation::Take(Take { costs, latest, is_open, served, key, ..Take::default() })
            }
        }
    }

    /// What a client starts now, as far as it has read.
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
    fn several_are_granted_as_one_after_the_other_and_in_order_within_a_key_and_sent_again_have_the_same_answers(seed: u64) {
        let mut world = World::new(seed);
        for _ in 0..60 {
            world.step();
        }
        let Operation::Several { takes, .. } = world.operation(23, 0) else { panic!("it is of that kind") };
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

    /// Who may write to a bucket writes anything in the place of some bytes, of the ledger and of the log that goes on from it.
    #[test]
    fn a_forged_ledger_or_record_is_refused_without_harm(
        seed: u64,
        changes in prop::collection::vec((any::<usize>(), prop_oneof![Just(0), Just(0x7f), Just(0xff), any::<u8>()]), 1..8),
        cut: usize,
        bytes: Vec<u8>,
    ) {
        let mut world = World::new(seed);
        (0..40).for_each(|_| world.step());
        let (whole, known) = (saved(&world.witness), world.log.len());
        (0..20).for_each(|_| world.step());
        let forge = |whole: &[u8]| {
            let mut forged = whole.to_vec();
            for (place, byte) in &changes {
                forged[place % whole.len()] = *byte;
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
    apply(&mut ledger, now, Operation::Late(vec![GiveBack { number, unused: late, key: None }]));
    let now = ledger.pass(90 * MILLISECOND);
    assert_eq!(left(&ledger, now), [0, 45], "five count");
    let rest = runs[8..].iter().map(|run| (run.at, Box::from([run.units]))).collect();
    apply(&mut ledger, now - 15 * MILLISECOND, Operation::GiveBack(vec![GiveBack { number, unused: rest, key: None }]));
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

const RECORDED: u64 = 5_935_310_094_078_920_377;

/// Grants for 0 to 400 ms are given; the third start is refused.
#[test]
fn after_a_refusal_grants_are_further_apart_and_those_before_are_outdated() {
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
    assert_eq!(ledger.pace_at(450 * MILLISECOND), ledger.pace_at(260 * MILLISECOND), "nobody starts with those");
    assert_ne!(ledger.pace_at(after[0].at), ledger.pace_at(260 * MILLISECOND));
}

/// The same of one key: what is granted to others is as near as before, and they see nothing of it.
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
    // Successes bring it back, also those of other processes, with their next requests.
    let mut now = SECOND;
    for _ in 0..400 {
        let served = ledger.pace_of(b"a", now).start(now).succeeded(false);
        now = take(&mut ledger, now, b"a", served);
    }
    assert_eq!(ledger.pace_of(b"a", now).learned(), None);
}

#[test]
fn a_key_of_which_too_many_have_failed_in_a_row_is_not_tried_for_an_hour() {
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
    tried(&mut ledger, 1, true, 2);
    let at = [0; 3].map(|_| take(&mut ledger, 2, b"a").unwrap());
    tried(&mut ledger, SECOND, false, 1);
    assert_eq!(take(&mut ledger, SECOND, b"a"), gone);
    assert_eq!(take(&mut ledger, SECOND, b"b"), Ok(SECOND), "others are tried");
    // What was granted for later was taken back; what had left was not.
    let number = ledger.latest();
    assert_eq!(at.map(|at| ledger.is_outdated_of_key(b"a", number - 1, at)), [false, true, true]);
    let known = ledger.keys_at(SECOND).into_iter().find(|key| *key.name == *b"a").unwrap();
    assert_eq!(known.given_up_until, Some(3_601 * SECOND));
    let hour = 3_600 * SECOND;
    assert_eq!(take(&mut ledger, SECOND + hour - 1, b"a"), gone);
    assert_eq!(take(&mut ledger, SECOND + hour, b"a"), Ok(SECOND + hour));
    // If it fails again, that counts at once.
    tried(&mut ledger, 2 * SECOND + hour, false, 1);
    assert_eq!(take(&mut ledger, 3 * SECOND + hour, b"a"), gone);
    let clear = Operation::Clear { anew: None, is_empty: false, number: 0, key: Some((*b"a").into()) };
    apply(&mut ledger, 3 * SECOND + hour, clear);
    assert_eq!(take(&mut ledger, 3 * SECOND + hour, b"a"), Ok(3 * SECOND + hour));
}

/// All commands of a bucket that only counts them are of one key.
#[test]
fn a_bucket_that_only_counts_commands_learns_the_pace_and_is_paused_for_all() {
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
    assert_eq!(left.count(), 11, "what was granted for later is taken back");
    // A single call, which names no key, waits, too.
    assert!(take(&mut ledger, now, None).at >= 2 * SECOND);
    assert!(ledger.keys_at(now).is_empty(), "it has no keys to show");
    assert_eq!(saved(&loaded(&saved(&ledger))), saved(&ledger));
}

/// Many take at random for a few keys, ahead of time or not, and give some back. Each grant conforms, in order of time, to
/// the limits of its key and to those of all.
#[test]
fn no_key_and_not_all_together_get_more_than_their_limits_allow() {
    for lines in ["50/s,burst=3\nper=f1\n3/s,burst=2", "9/s,window\nper=f1\n2/s,burst=1\n15/10s,window", "per=f1\n1/s"]
    {
        let mut chance = Chance(RandomSeed::new());
        let policy = Policy::from_lines(lines).unwrap();
        let (mut ledger, mut now, mut granted) = (Ledger::new(&policy, 0, 0), 0, BTreeMap::new());
        for _ in 0..4000 {
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
        assert!(times.len() > 50, "{}", times.len());
    }
}

/// The third waits; what the first gives back is there for a fourth, for those who have read a snapshot and for others.
#[test]
fn what_a_key_gets_back_counts_the_same_for_all_while_others_of_it_wait() {
    let mut ledger = Ledger::new(&Policy::from_lines("per=f1\n1/s,burst=2").unwrap(), 0, 0);
    let take = Take { key: Some(OfKey::of(b"a"[..].into())), ..Take::of(&[1]) };
    let grants = [0; 3].map(|_| ledger.take(0, [1, 1], &take).unwrap());
    assert_eq!(grants.map(|grant| grant.at), [0, 0, SECOND]);
    let operation = Operation::GiveBack(vec![take.unused(&grants[0])]);
    ledger.apply(&Record { time: SECOND / 2, owner: [1, 1], sequence: 0, operation });
    let next = [loaded(&saved(&ledger)), ledger].map(|mut ledger| ledger.take(SECOND / 2, [1, 1], &take).unwrap().at);
    assert!(next[0] == next[1] && next[0] < 2 * SECOND, "{next:?}");
}

/// Units wait for long before they are asked for, and keys are forgotten meanwhile.
#[test]
fn units_that_cost_more_than_the_burst_of_their_key_get_no_more_than_its_rate() {
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
                // What the first cost was paid before.
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
fn of_several_that_wait_for_the_limits_of_all_those_within_a_span_are_granted() {
    let mut ledger = Ledger::new(&Policy::from_lines("10/s,burst=1\nper=f1\n1/s,burst=1").unwrap(), 0, 0);
    let take = |name: &u8| {
        let key = OfKey::of([*name].into());
        Take { key: Some(key), ..Take::of(&[1]) }
    };
    // Another unit of the first key waits for that alone.
    let operation = Operation::Several { takes: b"aabcdefg".iter().map(take).collect(), span: 250 * MILLISECOND };
    let record = Record { time: 0, owner: [1, 1], sequence: 1, operation };
    let Reply::Each(answers) = ledger.apply(&record) else { panic!("one for each") };
    let times: Vec<_> = answers.iter().map(|answer| answer.map(|grant| grant.at / MILLISECOND)).collect();
    let not_now = Err(Refusal::TooLong { wait: 0 });
    assert_eq!(times, [Ok(0), Ok(1000), Ok(100), Ok(200), Ok(300), not_now, not_now, not_now]);
}

#[test]
fn at_most_so_many_keys_are_kept_and_new_ones_wait_for_room() {
    let policy = Policy::from_lines("per=f1\n1/s").unwrap();
    let mut ledger = Ledger::new(&policy, 0, 0);
    let mut take = |now, name: u64| {
        let key = Some(OfKey::of(name.to_le_bytes().into()));
        ledger.take(now, [1, 1], &Take { costs: [1].into(), latest: now, key, ..Take::default() }).is_ok()
    };
    assert_eq!((0..20_000).filter(|name| take(MILLISECOND, *name)).count(), 10_000);
    assert!(!take(999 * MILLISECOND, 20_000));
    assert!(take(1002 * MILLISECOND, 20_000), "the others are as new");
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
}

/// The ledger kept the times of 64 waiters. The others asked again for the times that they were promised at first.
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
    assert_eq!(ledger.again_from(&grants[7]), grants[7].at, "who was removed keeps its time");
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
fn a_settled_grant_leaves_the_limits_of_a_key_as_if_it_had_cost_that_from_the_start() {
    let policy = Policy::from_lines("1000/h,burst=1000\nper=f1\n100/h,burst=100").unwrap();
    let mut ledger = Ledger::new(&policy, 0, 0);
    let of = |cost: u64| OfKey { costs: [cost].into(), ..OfKey::of(b"a"[..].into()) };
    let take = |ledger: &mut Ledger, now, cost, is_open| {
        let take = Take { costs: [cost].into(), latest: Nanos::MAX, is_open, key: Some(of(cost)), ..Take::default() };
        ledger.take(now, [1, 1], &take).unwrap()
    };
    let first = take(&mut ledger, 5 * SECOND, 80, true);
    let _ = take(&mut ledger, 6 * SECOND, 10, false);
    let (charged, real, key) = ([80].into(), [20].into(), Some((of(80), [20].into())));
    let operation = Operation::Settle { number: first.number, at: first.at, charged, real, key };
    ledger.apply(&Record { time: 7 * SECOND, owner: [1, 1], sequence: 0, operation });
    assert_eq!((ledger.keys_at(7 * SECOND)[0].left[0], ledger.limits().left(7 * SECOND, 0)), (70, Some(970)));
}

/// Whether the first grant, which waits for half a second, is still good after the operation, and how many run then.
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
fn only_a_pause_of_a_key_takes_back_what_was_granted_and_what_is_removed_does_not_run() {
    let key = || Some(b"a"[..].into());
    assert_eq!(after(&Operation::Resume { key: key() }), (true, 4));
    let clear = |key| Operation::Clear { anew: None, is_empty: false, number: 0, key };
    assert_eq!(after(&clear(key())), (true, 2), "those that wait for a second or longer join again");
    assert_eq!(after(&clear(None)), (true, 2));
    assert_eq!(after(&Operation::Hold { until: 9 * SECOND, refused: Vec::new(), key: key() }), (false, 1));
}

#[test]
fn the_bucket_of_a_key_is_empty_after_its_pause_and_gets_back_what_was_not_used() {
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
    Take { key: Some(key_of(name, cost)), is_open: true, latest: Nanos::MAX, ..Take::of(&[]) }
}

fn settle_of(grant: &Grant, [charged, real]: [u64; 2]) -> Operation {
    let key = Some((key_of(b'a', charged), [real].into()));
    Operation::Settle { number: grant.number, at: grant.at, charged: [].into(), real: [].into(), key }
}

#[test]
fn what_one_of_a_key_gives_back_changes_nothing_for_another_that_is_settled() {
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
fn a_pause_that_has_ended_has_emptied_the_bucket_of_its_key_whatever_comes_then() {
    let mut ledger = Ledger::new(&Policy::from_lines("per=f1\n1/h,burst=5").unwrap(), 0, 0);
    let grant = ledger.take(1, [1, 1], &take_of(b'a', 1)).unwrap();
    let hold = Operation::Hold { until: SECOND, refused: Vec::new(), key: Some(b"a"[..].into()) };
    apply(&mut ledger, 2, hold);
    apply(&mut ledger, 2 * SECOND, Operation::GiveBack(vec![take_of(b'a', 1).unused(&grant)]));
    assert_eq!(ledger.keys_at(2 * SECOND)[0].left[0], 0, "as for all: it was before the pause");
    apply(&mut ledger, 2 * SECOND, Operation::Resume { key: Some(b"a"[..].into()) });
    assert_eq!(ledger.keys_at(2 * SECOND)[0].left[0], 0);
}

#[test]
fn a_pause_of_a_key_is_one_of_all_only_where_commands_are_counted_without_keys() {
    let mut ledger = Ledger::new(&Policy::from_lines("5/s,burst=5\njobs=9").unwrap(), 0, 0);
    apply(&mut ledger, 2, Operation::Hold { until: SECOND, refused: Vec::new(), key: Some(b"(none)"[..].into()) });
    assert_eq!(ledger.paused_until(), Some(SECOND));
    // Somebody has not seen yet that there are no keys any more.
    let mut ledger = Ledger::new(&policy(&["5/s,burst=5"]), 0, 0);
    apply(&mut ledger, 2, Operation::Hold { until: SECOND, refused: Vec::new(), key: Some(b"a"[..].into()) });
    assert_eq!(ledger.paused_until(), None);
}

#[test]
fn commands_that_nobody_counts_any_more_do_not_run_when_they_are_counted_again() {
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
        let _ = ledger.take(1, [1, 1], &Take { is_open: true, latest: Nanos::MAX, ..Take::of(&[1]) }).unwrap();
    }
    assert_eq!(saved(&loaded(&saved(&ledger))), saved(&ledger));
}

/// Law 2 for all who share a bucket. A unit of the key was reserved while a server had slowed it down. The pace was forgiven, and
/// who had read all of the log went on to keep the distance, while who had read a snapshot did not.
#[test]
fn a_pace_that_changes_while_a_unit_waits_is_the_same_for_who_reads_a_snapshot() {
    let mut world = World::new(3_980_016_061_289_808_242);
    (0..40).for_each(|_| world.step());
    for place in 0..world.clients.len() {
        world.read(place);
    }
}

/// Beyond the most entries a request was charged at its own time by who had read the log, and with the one before it by who
/// read a snapshot.
#[test]
fn beyond_the_most_entries_the_log_and_a_snapshot_mean_the_same() {
    for limits in [&["5/10s,window"][..], &["10/s,burst=1", "30/7s,window"], &["10/s,burst=2"]] {
        let (mut ledger, take) = (Ledger::new(&policy(limits), 0, 0), Take::of(&[1]));
        for _ in 0..MOST + 10 {
            let _ = ledger.take(0, [1, 1], &take);
        }
        assert_eq!(loaded(&saved(&ledger)).take(0, [1, 1], &take), ledger.take(0, [1, 1], &take), "{limits:?}");
    }
}

/// A pause stands before a lease whose last units are for later. When these were given back, the rest of the lease was charged
/// behind the pause by who had read the log, so that a unit could leave within the pause.
#[test]
fn a_lease_that_is_cut_to_before_a_pause_leaves_the_pause_as_it_is() {
    let mut ledger = Ledger::new(&policy(&["10/s,burst=1", "100/min,window"]), 0, 0);
    let runs = ledger.lease(0, [1, 1], &Ask { waiting: 6, span: SECOND, ..Ask::default() }).unwrap();
    ledger.hold_until(0, 450 * MILLISECOND);
    let unused = vec![(runs[5].at, Box::from([1]))];
    ledger.give_back(0, &GiveBack { number: runs[5].number, unused, key: None });
    assert_eq!(ledger.limits().at, 450 * MILLISECOND);
    assert_eq!(ledger.take(0, [2, 2], &Take::of(&[0, 1])).unwrap().at, 450 * MILLISECOND);
    assert!(saved(&loaded(&saved(&ledger))) == saved(&ledger));
}
