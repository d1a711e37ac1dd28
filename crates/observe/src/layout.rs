//! Rust copies of the structures that BPF programs and user space share (`bpf/*.h`).
//!
//! [`bpf_struct!`] declares a copy of a mapped structure, [`bpf_record!`] one that is parsed from bytes. The test below compares
//! name, offset and size of each field with the BTF of `bpf/layout.bpf.c`.

use quell_model::CoreSet;

/// `QUELL_MASK_WORDS`: words of the largest set of cores.
pub(crate) const MASK_WORDS: usize = 16;

/// The fields of a copied structure.
#[cfg(test)]
pub(crate) struct Layout {
    /// Its name in C.
    pub name: &'static str,
    pub bytes: usize,
    /// Name, offset and size of each field.
    pub fields: &'static [(&'static str, usize, usize)],
}

/// Declares the copy of a C structure: `"NAME" struct Copy { field: Type, .. }`. Fields have their names in C.
macro_rules! bpf_struct {
    (
        $(#[$attribute:meta])*
        $name:literal $visible:vis struct $copy:ident {
            $($(#[$about:meta])* $shown:vis $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$attribute])*
        #[repr(C)]
        $visible struct $copy {
            $($(#[$about])* $shown $field: $type,)*
        }

        #[cfg(test)]
        impl $copy {
            pub(crate) const LAYOUT: $crate::layout::Layout = $crate::layout::Layout {
                name: $name,
                bytes: size_of::<$copy>(),
                fields: &[$(
                    (stringify!($field), std::mem::offset_of!($copy, $field), size_of::<$type>()),
                )*],
            };
        }
    };
}

/// As [`bpf_struct!`], of a record that is read from bytes. Fields that only keep others in their places may be unused.
macro_rules! bpf_record {
    (
        $(#[$attribute:meta])*
        $name:literal $visible:vis struct $copy:ident {
            $($(#[$about:meta])* $shown:vis $field:ident: $type:ty,)*
        }
    ) => {
        $crate::layout::bpf_struct! {
            $(#[$attribute])*
            #[derive(Clone, Copy, Debug)]
            #[allow(dead_code, reason = "the layout needs each field, its reader perhaps not")]
            $name $visible struct $copy { $($(#[$about])* $shown $field: $type,)* }
        }

        impl $crate::layout::Field for $copy {
            fn from_bytes(bytes: &[u8]) -> $copy {
                $copy {
                    $($field: <$type as $crate::layout::Field>::from_bytes(
                        &bytes[std::mem::offset_of!($copy, $field)..],
                    ),)*
                }
            }
        }

        impl $copy {
            /// The record in the first of these bytes; `None` if they are too few.
            #[allow(dead_code, reason = "a nested record is parsed with the one around it")]
            $visible fn parse(bytes: &[u8]) -> Option<$copy> {
                (bytes.len() >= size_of::<$copy>())
                    .then(|| <$copy as $crate::layout::Field>::from_bytes(bytes))
            }
        }
    };
}

pub(crate) use {bpf_record, bpf_struct};

/// A value that a BPF program wrote, in native byte order. `bytes` begins with it.
pub(crate) trait Field {
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Field for $type {
            fn from_bytes(bytes: &[u8]) -> $type {
                bytes.first_chunk().map_or(0, |bytes| <$type>::from_ne_bytes(*bytes))
            }
        }
    )*};
}

number!(u8, u16, u32, i32, u64);

impl<T: Field, const N: usize> Field for [T; N] {
    fn from_bytes(bytes: &[u8]) -> [T; N] {
        std::array::from_fn(|index| T::from_bytes(&bytes[index * size_of::<T>()..]))
    }
}

/// A kernel's set of cores, from as many words as there are.
pub(crate) fn cores(mask: &[u8]) -> CoreSet {
    let mut words = [0; MASK_WORDS];
    for (word, bytes) in words.iter_mut().zip(mask.chunks_exact(8)) {
        *word = u64::from_bytes(bytes);
    }
    CoreSet::from_words(&words)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use libbpf_rs::btf::types::{Array, Composite, Int, MemberAttr, Var};
    use libbpf_rs::btf::{Btf, BtfKind, BtfType, HasSize, ReferencesType};
    use quell_model::Children;

    use super::*;
    use crate::{bpf, domains, keyframe, recorder};

    const OBJECT: &str = concat!(env!("OUT_DIR"), "/layout.bpf.o");

    fn copies() -> Vec<Layout> {
        let all = [bpf::layouts(), recorder::layouts(), keyframe::layouts(), domains::layouts()];
        all.into_iter().flatten().collect()
    }

    /// The bytes that a value of this type takes.
    fn bytes(of: BtfType<'_>) -> usize {
        let of = of.skip_mods_and_typedefs();
        match of.kind() {
            BtfKind::Int => Int::try_from(of).unwrap().size(),
            BtfKind::Struct => Composite::try_from(of).unwrap().size(),
            BtfKind::Array => {
                let array = Array::try_from(of).unwrap();
                array.capacity() * bytes(array.contained_type())
            }
            other => panic!(
                "a field of kind {other:?}: a pointer or an enum has no place in shared memory"
            ),
        }
    }

    /// Name, offset and size of a compiled field.
    type CompiledField = (String, usize, usize);

    /// The structures of which the object has a variable, as the compiler laid them out: name to (bytes, fields).
    fn compiled(btf: &Btf<'_>) -> BTreeMap<String, (usize, Vec<CompiledField>)> {
        let variables = btf.type_by_kind::<Var<'_>>().map(|variable| {
            let of = variable.referenced_type().skip_mods_and_typedefs();
            (variable.name().unwrap().to_str().unwrap().to_owned(), of)
        });
        let shared = variables.filter(|(name, _)| name.starts_with("shared_"));
        let structures = shared.map(|(_, of)| {
            let of = Composite::try_from(of).unwrap();
            let fields = of.iter().map(|member| {
                let MemberAttr::Normal { offset } = member.attr else { panic!("a bit field") };
                let name = member.name.unwrap().to_str().unwrap().to_owned();
                let size = bytes(btf.type_by_id(member.ty).unwrap());
                (name, offset as usize / 8, size)
            });
            let name = of.name().unwrap().to_str().unwrap().to_owned();
            (name, (of.size(), fields.collect()))
        });
        structures.collect()
    }

    /// How a copy differs from the compiled structure, a line a difference.
    fn differences(copy: &Layout, bytes: usize, fields: &[CompiledField]) -> Vec<String> {
        let mut found = Vec::new();
        for (name, offset, size) in fields {
            match copy.fields.iter().find(|(copied, ..)| copied == name) {
                None => found.push(format!("struct {}: `{name}` is not in the copy", copy.name)),
                Some((_, at, of)) if (at, of) != (offset, size) => found.push(format!(
                    "struct {}: `{name}` has offset {offset} and {size} bytes in C, {at} and {of} in the copy",
                    copy.name
                )),
                Some(_) => {}
            }
        }
        for (copied, ..) in copy.fields {
            if !fields.iter().any(|(name, ..)| name == copied) {
                found.push(format!("struct {}: `{copied}` is not in C", copy.name));
            }
        }
        if bytes != copy.bytes {
            found.push(format!(
                "struct {}: {bytes} bytes in C, {} in the copy",
                copy.name, copy.bytes
            ));
        }
        found
    }

    #[test]
    fn copies_have_the_fields_of_the_compiled_structures() {
        let btf = Btf::from_path(OBJECT).unwrap();
        let compiled = compiled(&btf);
        let copies: BTreeMap<&str, Layout> =
            copies().into_iter().map(|copy| (copy.name, copy)).collect();
        let names: Vec<&str> = compiled.keys().map(String::as_str).collect();
        assert_eq!(copies.keys().copied().collect::<Vec<_>>(), names, "layout.bpf.c has others");
        let found: Vec<String> = compiled
            .iter()
            .flat_map(|(name, (bytes, fields))| differences(&copies[name.as_str()], *bytes, fields))
            .collect();
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn children_have_the_values_of_the_enum_in_c() {
        let header = include_str!("../../../bpf/quell.h");
        let (_, body) = header.split_once("enum quell_children {").unwrap();
        let (body, _) = body.split_once('}').unwrap();
        let names: Vec<&str> =
            body.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let copies = [
            ("QUELL_ADOPT", Children::Adopt),
            ("QUELL_BEST_EFFORT", Children::Be),
            ("QUELL_LEAVE", Children::Leave),
        ];
        assert_eq!(names, copies.map(|(name, _)| name));
        assert_eq!(copies.map(|(_, of)| of as usize), [0, 1, 2]);
    }

    #[test]
    fn moved_missing_and_added_fields_are_named() {
        const FIELDS: &[(&str, usize, usize)] = &[("at", 0, 8), ("core", 8, 2), ("gone", 10, 2)];
        let copy = Layout { name: "record", bytes: 16, fields: FIELDS };
        let compiled =
            [("at".to_owned(), 0, 8), ("new".to_owned(), 8, 2), ("core".to_owned(), 10, 2)];
        let found = differences(&copy, 24, &compiled);
        assert_eq!(
            found,
            [
                "struct record: `new` is not in the copy",
                "struct record: `core` has offset 10 and 2 bytes in C, 8 and 2 in the copy",
                "struct record: `gone` is not in C",
                "struct record: 24 bytes in C, 16 in the copy",
            ]
        );
    }

    #[test]
    fn arrays_and_numbers_are_read_in_native_order() {
        let bytes: Vec<u8> = [7u32, 9].iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(<[u32; 2]>::from_bytes(&bytes), [7, 9]);
        assert_eq!(u16::from_bytes(&[1]), 0, "too few bytes are no number");
    }
}
