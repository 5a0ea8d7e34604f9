//! A queue that can be left from the middle in constant time: a doubly linked list in a vector.

/// An entry of a list. Valid until [`List::remove`].
pub(crate) type Key = usize;

const NONE: Key = Key::MAX;

/// A list with room for this many entries frees its memory when it becomes empty.
const WORTH_FREEING: usize = 1024;

/// A first-in, first-out list from which any entry can be removed in constant time. An unlinked entry can still be found
/// by its key until it is removed.
#[derive(Debug)]
pub(crate) struct List<T> {
    nodes: Vec<Node<T>>,
    head: Key,
    tail: Key,
    /// The first unused node; the others follow by `next`.
    free: Key,
    /// Nodes that hold a value.
    used: usize,
    len: usize,
}

#[derive(Debug)]
struct Node<T> {
    value: Option<T>,
    previous: Key,
    next: Key,
    linked: bool,
}

impl<T> List<T> {
    pub(crate) fn new() -> Self {
        List { nodes: Vec::new(), head: NONE, tail: NONE, free: NONE, used: 0, len: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn front(&self) -> Option<Key> {
        (self.head != NONE).then_some(self.head)
    }

    pub(crate) fn push_back(&mut self, value: T) -> Key {
        let node = Node { value: Some(value), previous: self.tail, next: NONE, linked: true };
        let key = self.place(node);
        match self.nodes.get_mut(self.tail) {
            Some(tail) => tail.next = key,
            None => self.head = key,
        }
        self.tail = key;
        self.len += 1;
        key
    }

    /// Links an unlinked entry again, at the front, but behind the first entries for which `stays` is true.
    pub(crate) fn link_before(&mut self, key: Key, stays: impl Fn(&T) -> bool) {
        if self.nodes.get(key).is_none_or(|node| node.linked || node.value.is_none()) {
            return;
        }
        let (mut previous, mut next) = (NONE, self.head);
        while self.get(next).is_some_and(&stays) {
            (previous, next) = (next, self.nodes[next].next);
        }
        match self.nodes.get_mut(previous) {
            Some(node) => node.next = key,
            None => self.head = key,
        }
        match self.nodes.get_mut(next) {
            Some(node) => node.previous = key,
            None => self.tail = key,
        }
        let node = &mut self.nodes[key];
        (node.previous, node.next, node.linked) = (previous, next, true);
        self.len += 1;
    }

    /// Takes an entry out of the order. It can still be found by its key.
    pub(crate) fn unlink(&mut self, key: Key) {
        let Some(node) = self.nodes.get_mut(key).filter(|node| node.linked) else { return };
        node.linked = false;
        let (previous, next) = (node.previous, node.next);
        match self.nodes.get_mut(previous) {
            Some(node) => node.next = next,
            None => self.head = next,
        }
        match self.nodes.get_mut(next) {
            Some(node) => node.previous = previous,
            None => self.tail = previous,
        }
        self.len -= 1;
    }

    /// Removes an entry and returns its value.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        self.unlink(key);
        let value = self.nodes.get_mut(key)?.value.take()?;
        self.nodes[key].next = self.free;
        self.free = key;
        self.used -= 1;
        if self.used == 0 && self.nodes.len() >= WORTH_FREEING {
            (self.nodes, self.free) = (Vec::new(), NONE);
        }
        Some(value)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        self.nodes.get(key)?.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.nodes.get_mut(key)?.value.as_mut()
    }

    /// From the front to the back.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let key = |key: Key| (key != NONE).then_some(key);
        let keys = std::iter::successors(key(self.head), move |&at| key(self.nodes[at].next));
        keys.filter_map(|at| self.get(at))
    }

    fn place(&mut self, node: Node<T>) -> Key {
        self.used += 1;
        let Some(unused) = self.nodes.get_mut(self.free) else {
            self.nodes.push(node);
            return self.nodes.len() - 1;
        };
        let key = self.free;
        self.free = unused.next;
        *unused = node;
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn it_is_a_queue_with_removal(steps in prop::collection::vec((0_u8..5, any::<prop::sample::Index>()), 1..200)) {
            let (mut list, mut model, mut kept) = (List::new(), VecDeque::new(), Vec::new());
            for (number, (step, index)) in steps.into_iter().enumerate() {
                match step {
                    0 | 1 => model.push_back((list.push_back(number), number)),
                    2 if !model.is_empty() => {
                        let (key, value) = model.remove(index.index(model.len())).unwrap();
                        list.unlink(key);
                        kept.push((key, value));
                    }
                    3 if !model.is_empty() => {
                        let (key, value) = model.remove(index.index(model.len())).unwrap();
                        prop_assert_eq!(list.remove(key), Some(value));
                    }
                    4 if !kept.is_empty() => {
                        let (key, value) = kept.swap_remove(index.index(kept.len()));
                        list.link_before(key, |other| *other < value);
                        let place = model.iter().take_while(|(_, other)| *other < value).count();
                        model.insert(place, (key, value));
                    }
                    _ => {}
                }
                prop_assert_eq!(list.len(), model.len());
                prop_assert!(list.iter().eq(model.iter().map(|(_, value)| value)));
                prop_assert_eq!(list.front(), model.front().map(|&(key, _)| key));
                prop_assert!(kept.iter().all(|(key, value)| list.get(*key) == Some(value)));
            }
        }
    }
}
