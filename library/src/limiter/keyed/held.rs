//! A limiter of a key, until the caller is done with it.

use super::table::Table;
use crate::limiter::handle::Limiter;
use crate::limits::AsKey;
use std::hash::Hash;

pub(super) struct Held<'a, K: Hash, Q: AsKey<K> + ?Sized> {
    table: &'a Table<K>,
    key: &'a Q,
    limiter: Option<Limiter>,
}

impl<'a, K: Hash, Q: AsKey<K> + ?Sized> Held<'a, K, Q> {
    pub(super) fn new(table: &'a Table<K>, key: &'a Q, limiter: Limiter) -> Self {
        Held { table, key, limiter: Some(limiter) }
    }

    pub(super) fn get(&self) -> &Limiter {
        self.limiter.as_ref().expect("held until it is dropped")
    }
}

impl<K: Hash, Q: AsKey<K> + ?Sized> Drop for Held<'_, K, Q> {
    fn drop(&mut self) {
        self.limiter.take().into_iter().for_each(|limiter| self.table.let_go(self.key, limiter));
    }
}
