//! Members and sets of them.

/// The most members that a lane has: a set of them is one word.
pub const MEMBERS_MAX: usize = 64;

/// A member's place in its lane, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u8);

impl Member {
    /// As an index.
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

/// A set of members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Members(u64);

impl Members {
    /// Nobody.
    pub const NONE: Members = Members(0);

    /// The first `count` members.
    pub const fn first_of(count: usize) -> Members {
        match count {
            0 => Members::NONE,
            1..64 => Members((1 << count) - 1),
            _ => Members(u64::MAX),
        }
    }

    /// Whether the member is in the set.
    pub const fn contains(self, member: Member) -> bool {
        self.0 & bit(member) != 0
    }

    /// Adds a member.
    pub const fn insert(&mut self, member: Member) {
        self.0 |= bit(member);
    }

    /// Takes a member out.
    pub const fn remove(&mut self, member: Member) {
        self.0 &= !bit(member);
    }

    /// Without this member.
    #[must_use]
    pub const fn without(self, member: Member) -> Members {
        Members(self.0 & !bit(member))
    }

    /// Those in both.
    #[must_use]
    pub const fn and(self, other: Members) -> Members {
        Members(self.0 & other.0)
    }

    /// Those in this set and not in the other.
    #[must_use]
    pub const fn minus(self, other: Members) -> Members {
        Members(self.0 & !other.0)
    }

    /// Whether it is nobody.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The members, in order.
    pub fn iter(self) -> impl Iterator<Item = Member> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let next = (left != 0).then(|| Member(left.trailing_zeros() as u8));
            left &= left.wrapping_sub(1);
            next
        })
    }
}

impl FromIterator<Member> for Members {
    fn from_iter<I: IntoIterator<Item = Member>>(members: I) -> Members {
        let mut set = Members::NONE;
        members.into_iter().for_each(|member| set.insert(member));
        set
    }
}

const fn bit(member: Member) -> u64 {
    // A lane has no more than 64; a number beyond is nobody.
    match member.0 {
        0..64 => 1 << member.0,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in_and_nothing_else() {
        let mut set: Members = [Member(3), Member(63), Member(0)].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [Member(0), Member(3), Member(63)]);
        set.remove(Member(3));
        assert!(!set.contains(Member(3)) && set.contains(Member(63)) && !set.contains(Member(64)));
        assert_eq!(
            (set.len(), Members::first_of(64).len(), Members::first_of(0).len()),
            (2, 64, 0)
        );
        assert_eq!(set.minus(Members::first_of(1)).iter().next(), Some(Member(63)));
    }
}
