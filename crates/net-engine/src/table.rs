//! A table whose keys are never mistaken for those of earlier entries in the same place.

use std::fmt;

/// The place of an entry and its generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// The place: keys of entries that are there at the same time have different ones.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

#[derive(Clone, Debug)]
struct Place<T> {
    generation: u32,
    entry: Option<T>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Table<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    /// Entries.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an entry.
    pub fn insert(&mut self, entry: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, entry: None });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        debug_assert!(place.entry.is_none());
        place.entry = Some(entry);
        Key { index, generation: place.generation }
    }

    /// Takes an entry out.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let place =
            self.places.get_mut(key.index()).filter(|it| it.generation == key.generation)?;
        let entry = place.entry.take()?;
        // After 2^32 entries in one place an old key could name a new one: by then it is not in use.
        place.generation = place.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(entry)
    }

    /// An entry, if it is still there.
    pub fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index())?;
        place.entry.as_ref().filter(|_| place.generation == key.generation)
    }

    /// An entry, if it is still there.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index())?;
        place.entry.as_mut().filter(|_| place.generation == key.generation)
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let key = Key { index: index as u32, generation: place.generation };
            Some((key, place.entry.as_ref()?))
        })
    }

    /// All entries.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        self.places.iter_mut().enumerate().filter_map(|(index, place)| {
            let key = Key { index: index as u32, generation: place.generation };
            Some((key, place.entry.as_mut()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_a_removed_entry_names_no_later_one() {
        let mut table = Table::default();
        let first = table.insert('a');
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert('b');
        assert_eq!(first.index(), second.index());
        assert_eq!((table.get(first), table.get(second)), (None, Some(&'b')));
        assert_eq!((table.remove(first), table.len()), (None, 1));
        assert_eq!(table.iter().map(|(key, _)| key).collect::<Vec<_>>(), [second]);
    }
}
