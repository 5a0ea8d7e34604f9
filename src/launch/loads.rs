//! Memory for commands that are starting. The words of a command are copied for its start, each into an allocation of its
//! own; where they are many or long, few such commands may be starting at once.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What all that are starting may take together; one may always start.
const MOST: usize = 1 << 20;

/// What takes less is not worth counting: few commands are starting at once.
const LIGHT: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(super) struct Loads {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// Memory taken until this is dropped.
#[derive(Debug)]
pub(super) struct Load {
    loads: Arc<Loads>,
    bytes: usize,
}

impl Loads {
    /// Returns when `bytes` more would not be too much.
    pub(super) fn wait_for(&self, bytes: usize) {
        if bytes > LIGHT {
            drop(self.once_there_is_room(bytes));
        }
    }

    /// Takes `bytes`, as soon as that is not too much.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Option<Load> {
        (bytes > LIGHT).then(|| {
            *self.once_there_is_room(bytes) += bytes;
            Load { loads: Arc::clone(self), bytes }
        })
    }

    fn once_there_is_room(&self, bytes: usize) -> MutexGuard<'_, usize> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_too_much = |taken: &mut usize| *taken > 0 && *taken + bytes > MOST;
        self.freed.wait_while(taken, is_too_much).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        *self.loads.taken.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.loads.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn a_heavy_start_waits_for_another_and_a_light_one_for_nobody() {
        let loads = Arc::new(Loads::default());
        let first = loads.take(10 * MOST);
        assert!(first.is_some() && loads.take(LIGHT).is_none());
        thread::scope(|scope| {
            let second = scope.spawn(|| loads.take(MOST));
            thread::sleep(Duration::from_millis(20));
            assert!(!second.is_finished());
            drop(first);
            assert!(second.join().unwrap().is_some());
        });
        assert_eq!(*loads.taken.lock().unwrap(), 0);
    }
}
