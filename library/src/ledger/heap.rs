//! A heap whose items can be found and removed by number. Each node has four children, so the heap is shallow and uses
//! few cache lines.

use std::cmp::Ordering;
use std::collections::TryReserveError;

/// The least item comes first: by `at`, then by `age`, then by `id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Item {
    /// A time, or a tag.
    pub(super) at: u64,
    pub(super) age: u64,
    /// The number of the item. Each number is in the heap at most once.
    pub(super) id: u32,
}

/// Children of a node.
const WIDTH: usize = 4;

const NO_PLACE: u32 = u32::MAX;

#[derive(Clone, Debug, Default)]
pub(super) struct Heap {
    items: Vec<Item>,
    /// The index of each number's item in `items`.
    places: Vec<u32>,
}

impl Heap {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// All items, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Item> {
        self.items.iter().copied()
    }

    /// Makes room for items with all numbers up to `id`.
    pub(super) fn try_reserve(&mut self, id: usize) -> Result<(), TryReserveError> {
        self.places.try_reserve((id + 1).saturating_sub(self.places.len()))?;
        self.items.try_reserve((id + 1).saturating_sub(self.items.len()))
    }

    #[inline]
    pub(super) fn first(&self) -> Option<Item> {
        self.items.first().copied()
    }

    /// The item with this number.
    pub(super) fn find(&self, id: u32) -> Option<Item> {
        self.items.get(*self.places.get(id as usize)? as usize).copied()
    }

    pub(super) fn push(&mut self, item: Item) {
        if self.places.len() <= item.id as usize {
            self.places.resize(item.id as usize + 1, NO_PLACE);
        }
        self.items.push(item);
        self.rise(self.items.len() - 1, item);
    }

    pub(super) fn pop(&mut self) -> Option<Item> {
        self.remove(self.items.first()?.id)
    }

    /// Removes the item with this number, if there is one.
    pub(super) fn remove(&mut self, id: u32) -> Option<Item> {
        let place = *self.places.get(id as usize)? as usize;
        let item = *self.items.get(place)?;
        self.places[id as usize] = NO_PLACE;
        let last = self.items.pop()?;
        if place < self.items.len() {
            match last.cmp(&item) {
                Ordering::Less => self.rise(place, last),
                _ => self.sink(place, last),
            }
        }
        Some(item)
    }

    /// Calls `visit` with the items in order until it returns `false`. `open` is scratch memory.
    pub(super) fn visit(&self, open: &mut Vec<usize>, mut visit: impl FnMut(Item) -> bool) {
        open.clear();
        // `open` holds the nodes whose parents were visited; the least is the last. A visit ends soon, so there are
        // few.
        open.extend((!self.items.is_empty()).then_some(0));
        while let Some(node) = open.pop() {
            if !visit(self.items[node]) {
                return;
            }
            let first = WIDTH * node + 1;
            for child in first..self.items.len().min(first + WIDTH) {
                let at = open.partition_point(|other| self.items[*other] > self.items[child]);
                open.insert(at, child);
            }
        }
    }

    #[inline]
    fn put(&mut self, place: usize, item: Item) {
        self.items[place] = item;
        self.places[item.id as usize] = u32::try_from(place).unwrap_or(NO_PLACE);
    }

    fn rise(&mut self, mut place: usize, item: Item) {
        while place > 0 {
            let parent = (place - 1) / WIDTH;
            if self.items[parent] <= item {
                break;
            }
            self.put(place, self.items[parent]);
            place = parent;
        }
        self.put(place, item);
    }

    fn sink(&mut self, mut place: usize, item: Item) {
        loop {
            let first = WIDTH * place + 1;
            let children = self.items.get(first..self.items.len().min(first + WIDTH)).unwrap_or_default();
            let least = (first..).zip(children).min_by_key(|(_, child)| **child);
            let Some((child_place, &child)) = least.filter(|(_, child)| **child < item) else { break };
            self.put(place, child);
            place = child_place;
        }
        self.put(place, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn items_come_in_order_and_can_be_removed(
            steps in prop::collection::vec((0..40_u32, 0..9_u64, any::<bool>()), 0..200),
        ) {
            let (mut heap, mut model) = (Heap::default(), std::collections::BTreeSet::new());
            for (id, at, is_removed) in steps {
                let there = model.iter().find(|item: &&Item| item.id == id).copied();
                if is_removed || there.is_some() {
                    prop_assert_eq!(heap.remove(id), there);
                    there.map(|item| model.remove(&item));
                } else {
                    let item = Item { at, age: 7 * at % 5, id };
                    heap.push(item);
                    model.insert(item);
                }
                prop_assert_eq!(heap.first(), model.first().copied());
                let (mut visited, mut open) = (Vec::new(), Vec::new());
                heap.visit(&mut open, |item| {
                    visited.push(item);
                    visited.len() < 5
                });
                prop_assert!(visited.iter().eq(model.iter().take(5)));
            }
            while let Some(item) = heap.pop() {
                prop_assert_eq!(Some(item), model.pop_first());
            }
            prop_assert!(model.is_empty());
        }
    }
}
