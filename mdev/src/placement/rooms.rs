//! Rooms by number: a search meets few different ones again and again, so that
//! each, and what taking from it does, is worked out once.

use std::collections::BTreeMap;

use crate::room::Room;

use super::Effect;

/// The rooms that were met.
#[derive(Default)]
pub(super) struct Rooms {
    /// By class: rooms of two classes are never the same, however alike.
    numbers: BTreeMap<(usize, Room), usize>,
    known: Vec<Known>,
}

struct Known {
    class: usize,
    room: Room,
    future: u128,
    takes: BTreeMap<usize, Option<(usize, Effect)>>,
}

impl Rooms {
    /// The number of a room.
    pub(super) fn number(&mut self, class: usize, room: &Room) -> usize {
        let next = self.known.len();
        let number = *self.numbers.entry((class, room.clone())).or_insert(next);
        if number == next {
            let (room, future) = (room.clone(), room.future());
            self.known.push(Known { class, room, future, takes: BTreeMap::new() });
        }
        number
    }

    /// [`Room::future`] of a room.
    pub(super) fn future(&self, number: usize) -> u128 {
        self.known.get(number).map_or(0, |known| known.future)
    }

    /// The room after one of a kind is taken, `None` when none fits.
    pub(super) fn take(&mut self, number: usize, place: usize) -> Option<(usize, Effect)> {
        let known = self.known.get(number)?;
        if let Some(met) = known.takes.get(&place) {
            return *met;
        }
        let class = known.class;
        let taken = Effect::of(&known.room, place);
        let taken = taken.map(|(after, effect)| (self.number(class, &after), effect));
        if let Some(known) = self.known.get_mut(number) {
            known.takes.insert(place, taken);
        }
        taken
    }
}
