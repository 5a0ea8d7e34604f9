//! The levels of limits: everything that changes, for one key or one limiter.

use super::state::{Level, State};
use super::terms::Terms;

/// The levels of one key's limits, in 32 bytes. A single bucket without open grants, the usual case, needs no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(serde::Serialize, serde::Deserialize))]
pub struct Levels(pub(super) Form);

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Form {
    One(Level),
    Several(Box<[State]>),
}

impl Default for Levels {
    fn default() -> Self {
        Levels(Form::Several(Box::default()))
    }
}

impl Levels {
    pub(super) fn new(terms: &[Terms], states: Vec<State>) -> Self {
        let mut levels = Levels(Form::Several(states.into()));
        levels.narrow(terms);
        levels
    }

    pub(super) fn to_vec(&self) -> Vec<State> {
        self.with(<[State]>::to_vec)
    }

    /// Frees memory if this is a single bucket without open grants.
    pub(super) fn narrow(&mut self, terms: &[Terms]) {
        if let (Form::Several(states), [Terms::Bucket(_)]) = (&self.0, terms)
            && let [state] = &**states
            && state.is_level()
        {
            self.0 = Form::One(state.level);
        }
    }

    /// Makes room for open grants.
    pub(super) fn widen(&mut self) {
        if let Form::One(level) = self.0 {
            self.0 = Form::Several([State::from(level)].into());
        }
    }

    /// Whether a bucket has an open grant.
    pub(super) fn has_open(&self) -> bool {
        self.with(|states| states.iter().any(|state| state.open().is_some()))
    }

    /// Closes a grant that will not be settled: its charge was its real cost.
    pub(super) fn close(&mut self, number: u64) {
        self.with_mut(|states| states.iter_mut().for_each(|state| state.close(number)));
    }

    #[inline]
    pub(super) fn with<R>(&self, act: impl FnOnce(&[State]) -> R) -> R {
        match &self.0 {
            Form::One(level) => act(&[State::from(*level)]),
            Form::Several(states) => act(states),
        }
    }

    #[inline]
    pub(super) fn with_mut<R>(&mut self, act: impl FnOnce(&mut [State]) -> R) -> R {
        match &mut self.0 {
            Form::One(level) => {
                let mut state = [State::from(*level)];
                let result = act(&mut state);
                *level = state[0].level;
                result
            }
            Form::Several(states) => act(states),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_levels_of_a_key_take_32_bytes() {
        assert_eq!(size_of::<Levels>(), 32);
    }
}
