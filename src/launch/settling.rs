//! The real costs of commands, from their replies, for each limit that counts a cost.

use super::event::Event;
use super::reply::Reply;
use crate::flow::cost::Cost;

/// The limits, or kinds of limits, whose costs replies settle.
#[derive(Clone, Debug, Default)]
pub struct Settling(Vec<Option<Settled>>);

/// The cost that a limit counts, and the most that a reply may add to the charged cost. That bound keeps other units
/// from waiting longer than allowed.
type Settled = (Cost, u64);

/// The real cost of a command for each limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Real {
    pub(super) costs: Box<[u64]>,
    /// The first cost in `costs` that the reply settled. Without limits that count costs: the first cost of the reply,
    /// for the log.
    pub(super) reported: Option<u64>,
}

impl Settling {
    /// For each limit: the cost that it counts (`None`: units), and the most that a reply may add to the charged cost.
    pub fn new(limits: impl IntoIterator<Item = (Option<Cost>, u64)>) -> Self {
        Settling(limits.into_iter().map(|(cost, most_more)| Some((cost?, most_more))).collect())
    }

    fn settled(&self) -> impl Iterator<Item = &Settled> {
        self.0.iter().flatten()
    }

    /// Whether replies settle any limit.
    pub fn is_any(&self) -> bool {
        self.settled().next().is_some()
    }

    /// The cost that the limits count, if they all count the same cost.
    fn only(&self) -> Option<&Cost> {
        let (first, _) = self.settled().next()?;
        self.settled().all(|(cost, _)| cost.is_kind_of(first)).then_some(first)
    }

    /// An example of a reply field that settles a limit.
    pub(super) fn example(&self) -> String {
        match self.settled().next() {
            Some((cost, _)) if self.only().is_none() => format!("throttle-cost: 30 {}", cost.kind()),
            _ => "throttle-cost: 30".to_owned(),
        }
    }

    /// The real cost of a command that was charged `costs`, from its reply. Calls `note` if the reply is not used as
    /// written.
    pub(super) fn real(&self, costs: &[u64], reply: &Reply, note: impl FnMut(Event)) -> Real {
        let mut real = Real { costs: costs.into(), reported: None };
        let mut remark = self.misplaced(reply);
        for (cost, settled) in real.costs.iter_mut().zip(&self.0) {
            let Some((kind, most_more)) = settled else { continue };
            let reported = reply
                .costs
                .iter()
                .find(|(reported, _)| reported.as_ref().is_none_or(|reported| reported.is_kind_of(kind)));
            let Some((_, reported)) = reported.filter(|(reported, _)| reported.is_some() || self.only().is_some())
            else {
                continue;
            };
            let most = cost.saturating_add(*most_more);
            if *reported > most {
                let cut = || {
                    format!(
                        "a reply has 'throttle-cost: {reported}', cut to {most}: a higher cost would delay other units longer than --max-pause"
                    )
                };
                remark.get_or_insert_with(cut);
            }
            *cost = most.min(*reported);
            real.reported.get_or_insert(*cost);
        }
        let mut event = remark.map(Event::BadReply);
        if !self.is_any() {
            real.reported = reply.costs.first().map(|(_, reported)| *reported);
            let why = |reported| {
                format!(
                    "a reply has 'throttle-cost: {reported}', but no limit has a cost, so nothing is settled; write for \
                     example -r 5/s,cost=1"
                )
            };
            event = real.reported.map(why).map(Event::UncountedCost);
        }
        event.into_iter().for_each(note);
        real
    }

    /// Why a cost in the reply settles no limit.
    fn misplaced(&self, reply: &Reply) -> Option<String> {
        let is_placed = |reported: &Option<Cost>| match reported {
            None => self.only().is_some(),
            Some(reported) => self.settled().any(|(cost, _)| cost.is_kind_of(reported)),
        };
        let (kind, cost) = reply.costs.iter().find(|(reported, _)| self.is_any() && !is_placed(reported))?;
        let why = match kind {
            None => format!("a reply has 'throttle-cost: {cost}', but the limits count several costs"),
            Some(kind) => format!("a reply has 'throttle-cost: {cost} {kind}', which no limit counts"),
        };
        Some(format!("{why}; write for example {}", self.example()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn settling(limits: &[(&str, u64)]) -> Settling {
        Settling::new(limits.iter().map(|(cost, most_more)| (cost.parse().ok(), *most_more)))
    }

    fn real(settling: &Settling, costs: &[u64], reply: &str) -> (Vec<u64>, Option<u64>, String) {
        let mut remark = String::new();
        let note = |event| {
            if let Event::BadReply(text) = event {
                remark = text;
            }
        };
        let real = settling.real(costs, &Reply::parse(reply.as_bytes(), 1, UNIX_EPOCH), note);
        (real.costs.into(), real.reported, remark)
    }

    #[test]
    fn a_cost_without_a_kind_settles_only_a_single_cost() {
        let uncounted = |limits: &[(&str, u64)], reply: &str| {
            let mut uncounted = None;
            let note = |event| {
                if let Event::UncountedCost(text) = event {
                    uncounted = Some(text);
                }
            };
            settling(limits).real(&[1], &Reply::parse(reply.as_bytes(), 1, UNIX_EPOCH), note);
            uncounted
        };
        assert!(
            uncounted(&[("", 0)], "throttle-cost: 0").unwrap().contains("'throttle-cost: 0', but no limit has a cost")
        );
        assert_eq!(uncounted(&[("", 0)], "retry-after: 1"), None);
        assert_eq!(uncounted(&[("1", 99)], "throttle-cost: 0"), None);
        let one = settling(&[("", 0), ("f2", 99), ("f2,else=7", 99)]);
        assert_eq!(real(&one, &[1, 10, 10], "throttle-cost: 3"), (vec![1, 3, 3], Some(3), String::new()));
        let two = settling(&[("", 0), ("100", 99), ("10", 99)]);
        let why = "a reply has 'throttle-cost: 2', but the limits count several costs; write for example \
             throttle-cost: 30 100";
        assert_eq!(real(&two, &[1, 100, 10], "throttle-cost: 2"), (vec![1, 100, 10], None, why.to_owned()));
        assert_eq!(real(&settling(&[("", 0)]), &[1], "throttle-cost: 5"), (vec![1], Some(5), String::new()));
    }

    #[test]
    fn the_last_cost_of_a_kind_settles_its_limits() {
        let limits = settling(&[("/max_tokens,else=4", 99), ("bytes/4+300", 99), ("", 0)]);
        let reply = "throttle-cost: 9 bytes/4+300\nthrottle-cost: 8 /max_tokens\nThrottle-Cost:  7   /max_tokens \n";
        assert_eq!(real(&limits, &[50, 60, 1], reply), (vec![7, 9, 1], Some(7), String::new()));
        let (costs, _, why) = real(&limits, &[50, 60, 1], "throttle-cost: 7 f2\nthrottle-cost: 8 bytes/4+300");
        let words =
            "a reply has 'throttle-cost: 7 f2', which no limit counts; write for example throttle-cost: 30 /max_tokens";
        assert_eq!((costs, &*why), (vec![50, 8, 1], words));
    }

    #[test]
    fn a_cost_that_would_hold_others_up_for_too_long_is_cut() {
        let limits = settling(&[("f2", 90), ("f2", 9)]);
        let (costs, reported, why) = real(&limits, &[10, 10], "throttle-cost: 1000000");
        let words = "a reply has 'throttle-cost: 1000000', cut to 100: a higher cost would delay other units longer than --max-pause";
        assert_eq!((costs, reported, &*why), (vec![100, 19], Some(100), words));
    }
}
