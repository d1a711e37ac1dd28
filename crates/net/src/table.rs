//! What a driver knows of the engine's channels and sockets, by their keys.

use quell_net_engine::Key;

/// Entries beside those of an engine's table.
#[derive(Debug)]
pub(crate) struct SideTable<T>(Vec<Option<(Key, T)>>);

impl<T> Default for SideTable<T> {
    fn default() -> SideTable<T> {
        SideTable(Vec::new())
    }
}

impl<T> SideTable<T> {
    pub fn insert(&mut self, key: Key, entry: T) {
        self.remove(key);
        self.get_or_insert_with(key, || entry);
    }

    pub fn get(&self, key: Key) -> Option<&T> {
        let (known, entry) = self.0.get(key.index())?.as_ref()?;
        (*known == key).then_some(entry)
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let (known, entry) = self.0.get_mut(key.index())?.as_mut()?;
        (*known == key).then_some(entry)
    }

    pub fn get_or_insert_with(&mut self, key: Key, make: impl FnOnce() -> T) -> &mut T {
        let index = key.index();
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        let place = &mut self.0[index];
        if place.as_ref().is_some_and(|(known, _)| *known != key) {
            *place = None;
        }
        &mut place.get_or_insert_with(|| (key, make())).1
    }

    pub fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        let place = self.0.get_mut(key.index())?;
        place.take().map(|(_, entry)| entry)
    }

    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.0.iter().flatten().map(|(key, _)| *key)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        self.0.iter_mut().flatten().map(|(key, entry)| (*key, entry))
    }
}
