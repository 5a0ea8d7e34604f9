//! The agenda: units that wait for a time of their own, for example to be tried again after a failure.

use std::collections::BTreeMap;
use throttle_limits::clock::Nanos;

/// Items that wait until they are due. Those that are due leave in the order of their age, whatever times they had.
#[derive(Debug)]
pub struct Agenda<T> {
    /// By the time at which they are due, then by age.
    waiting: BTreeMap<(Nanos, u64), Item<T>>,
    /// By age.
    due: BTreeMap<u64, Item<T>>,
    memory: usize,
}

#[derive(Debug)]
struct Item<T> {
    size: usize,
    content: T,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Agenda { waiting: BTreeMap::new(), due: BTreeMap::new(), memory: 0 }
    }
}

impl<T> Agenda<T> {
    /// Adds `content`, which takes `size` bytes and is due at `due`. No other item has the same `age`; the oldest has
    /// the least.
    pub fn add(&mut self, due: Nanos, age: u64, size: usize, content: T) {
        self.memory = self.memory.saturating_add(size);
        self.waiting.insert((due, age), Item { size, content });
    }

    /// How many are due at `now`.
    pub fn due(&mut self, now: Nanos) -> usize {
        while let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= now) {
            let ((_, age), item) = first.remove_entry();
            self.due.insert(age, item);
        }
        self.due.len()
    }

    /// The oldest item that is due at `now`.
    pub fn oldest_due(&mut self, now: Nanos) -> Option<&T> {
        self.due(now);
        self.due.first_key_value().map(|(_, item)| &item.content)
    }

    /// Takes out the item of this age, which was [due](Self::oldest_due).
    pub fn remove_due(&mut self, age: u64) -> Option<T> {
        let item = self.due.remove(&age)?;
        self.memory -= item.size;
        Some(item.content)
    }

    /// When the next item is due that was not due when it was last looked.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        self.waiting.first_key_value().map(|((due, _), _)| *due)
    }

    /// How many items wait, due or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len() + self.due.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that all items take.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Takes out the items for which `is_one` holds, the oldest first.
    pub fn remove_those(&mut self, is_one: impl Fn(&T) -> bool) -> Vec<T> {
        let waiting: Vec<_> =
            self.waiting.iter().filter(|(_, item)| is_one(&item.content)).map(|(at, _)| *at).collect();
        let due: Vec<_> = self.due.iter().filter(|(_, item)| is_one(&item.content)).map(|(age, _)| *age).collect();
        let mut found: Vec<_> = waiting.into_iter().filter_map(|at| Some((at.1, self.waiting.remove(&at)?))).collect();
        found.extend(due.into_iter().filter_map(|age| Some((age, self.due.remove(&age)?))));
        found.sort_by_key(|(age, _)| *age);
        self.memory -= found.iter().map(|(_, item)| item.size).sum::<usize>();
        found.into_iter().map(|(_, item)| item.content).collect()
    }

    /// Takes out all items, the oldest first.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.due(Nanos::MAX);
        self.memory = 0;
        std::mem::take(&mut self.due).into_values().map(|item| item.content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_is_due_leaves_first() {
        let mut agenda = Agenda::default();
        for (due, age) in [(30, 1), (10, 3), (20, 2), (40, 0)] {
            agenda.add(due, age, 100, age);
        }
        assert_eq!(agenda.oldest_due(9), None);
        assert_eq!(agenda.next_due(), Some(10));
        assert_eq!((agenda.due(30), agenda.next_due(), agenda.memory()), (3, Some(40), 400));
        for age in [1, 2, 3] {
            assert_eq!(agenda.oldest_due(30), Some(&age));
            assert_eq!(agenda.remove_due(age), Some(age));
        }
        assert_eq!(agenda.oldest_due(30), None);
        agenda.add(35, 5, 100, 5);
        agenda.add(50, 6, 100, 6);
        agenda.add(20, 4, 100, 4);
        assert_eq!((agenda.due(30), agenda.remove_those(|age| [6, 4].contains(age))), (1, vec![4, 6]));
        assert_eq!((agenda.len(), agenda.memory()), (2, 200));
        assert_eq!(agenda.drain().collect::<Vec<_>>(), [0, 5]);
        assert!(agenda.is_empty() && agenda.memory() == 0);
    }
}
