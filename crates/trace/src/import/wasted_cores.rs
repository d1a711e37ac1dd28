//! Lines of the Wasted Cores authors' recorder, and of the forks of it:
//!
//! ```text
//! cells of all cores TAB time nsecs RQ core size | LD core load | SC type from to
//! # time nsecs BA type core core-it-ran-on mask
//! ```
//!
//! The cells repeat what earlier lines said, and some forks leave them out: only their number is looked at.

use quell_model::{CORES_MAX, Certainty, CoreId, CoreSet, MoveCause, Nanos, Search, What};

use super::{Parsed, Raw};

/// The thread of a migration, which the format does not tell.
pub const NOBODY_KNOWN: i32 = -1;

/// Whether this is a line of that format.
pub fn is_one(line: &str) -> bool {
    line.contains(" nsecs ")
}

/// What a line says.
///
/// # Errors
/// What is wrong with it.
pub fn parse(line: &str) -> Result<Parsed, String> {
    let Some((before, event)) = line.split_once(" nsecs ") else {
        let text = line.trim();
        let is_nothing = text.is_empty() || text.starts_with('#');
        return if is_nothing { Ok(Parsed::Nothing) } else { Err("no time in `nsecs`".into()) };
    };
    let (cells, time) = before.rsplit_once([' ', '\t']).unwrap_or(("", before));
    let at =
        time.parse().map(Nanos).map_err(|_| format!("`{time}` is not a time in nanoseconds"))?;
    let words: Vec<&str> = event.split_ascii_whitespace().take(8).collect();
    let event = match words[..] {
        ["RQ", of, size] => {
            let size = number(size)?;
            let of = core(of)?;
            (of, What::Queue { of, queued: size, runnable: size })
        }
        ["LD", of, load] => {
            let of = core(of)?;
            (of, What::Load { of, weight: number(load)?, average: 0 })
        }
        ["SC", kind, from, to] => return scheduled(at, kind, from, to),
        ["BA", kind, by, _, mask] => return considered(at, kind, by, mask),
        [kind, ..] => return Ok(Parsed::Other(kind.chars().take(32).collect())),
        [] => return Err("a time without an event".into()),
    };
    let (core, what) = event;
    if let Some(cores) = cores(cells).filter(|cores| core.index() >= *cores) {
        return Err(format!("core {core} of a line with cells of {cores} cores"));
    }
    Ok(event_at(at, core, what))
}

fn event_at(at: Nanos, core: CoreId, what: What) -> Parsed {
    Parsed::Event(Raw { at, core, what, prev: None, process: None })
}

/// How many cores the cells are of: 20 characters with three numbers for each, or 4 characters with one.
pub fn cores(cells: &str) -> Option<usize> {
    let cells = cells.trim_end_matches([' ', '\t', '#']);
    let numbers = cells.split_ascii_whitespace().count();
    match cells.len() {
        0 => None,
        length if length == numbers * 4 => Some(numbers),
        length if numbers.is_multiple_of(3) && length == numbers / 3 * 20 => Some(numbers / 3),
        _ => None,
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number that can stand there"))
}

fn core(text: &str) -> Result<CoreId, String> {
    let core: u16 = number(text)?;
    if usize::from(core) >= CORES_MAX {
        return Err(format!("core {core} is past the highest possible one"));
    }
    Ok(CoreId(core))
}

/// A move; which thread moved is not told. 0 exec, 1 wake-up, 2 new thread, 13 idle and 14 periodic balancing that
/// moved something, 23 and 24 the same by the stopper.
fn scheduled(at: Nanos, kind: &str, from: &str, to: &str) -> Result<Parsed, String> {
    let cause = match number(kind)? {
        0u32 => MoveCause::Exec,
        1 => MoveCause::Wakeup,
        2 => MoveCause::Fork,
        13 => MoveCause::NewIdle,
        14 => MoveCause::Periodic,
        23 | 24 => MoveCause::Active,
        _ => return Ok(Parsed::Other(format!("SC {kind}"))),
    };
    if from == "-1" || to == "-1" || from == to {
        return Ok(Parsed::Nothing);
    }
    let (from, to) = (core(from)?, core(to)?);
    Ok(event_at(at, to, What::Migrate { thread: NOBODY_KNOWN, from, to, cause }))
}

/// Cores that a search looked at: 200 idle sibling, 201 statistics of groups, 202 busiest queue, 203 idlest group,
/// 204 idlest core.
fn considered(at: Nanos, kind: &str, by: &str, mask: &str) -> Result<Parsed, String> {
    let search = match number(kind)? {
        200u32 => Search::IdleSibling,
        201 => Search::GroupStatistics,
        202 => Search::BusiestQueue,
        203 | 204 => Search::Idlest,
        _ => return Ok(Parsed::Other(format!("BA {kind}"))),
    };
    let mask = u64::from_str_radix(mask.trim_start_matches("0x"), 16)
        .map_err(|_| format!("`{mask}` is not a mask of cores in hexadecimal"))?;
    let (by, cores) = (core(by)?, CoreSet::from_words(&[mask]));
    let certainty = Certainty::Observed;
    Ok(event_at(at, by, What::Considered { by, search, cores: cores.into(), certainty }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(line: &str) -> What {
        match parse(line) {
            Ok(Parsed::Event(raw)) => raw.what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_widths_and_lines_without_cells_say_the_same() {
        let expected = What::Queue { of: CoreId(1), queued: 3, runnable: 3 };
        let full = format!("{:4}{:4}{:12}", 1, -1, 1024).repeat(2) + "\t 454174000123 nsecs RQ 1 3";
        let short = "   1  -1\t 454174000123 nsecs RQ 1 3";
        for line in [full.as_str(), short, "454174000123 nsecs RQ 1 3"] {
            assert_eq!(what(line), expected, "{line}");
        }
        assert_eq!(cores(&full[..40]), Some(2));
        assert_eq!(cores(&short[..8]), Some(2));
    }

    #[test]
    fn moves_and_searches_are_events() {
        let moved = what("5 nsecs SC 13 0 4");
        assert!(matches!(moved, What::Migrate { cause: MoveCause::NewIdle, to: CoreId(4), .. }));
        assert!(matches!(parse("5 nsecs SC 1 -1 4"), Ok(Parsed::Nothing)));
        let looked = what("# 77 nsecs BA 201 2 2 00000000000000ff");
        let What::Considered { by, cores, .. } = looked else { panic!("{looked:?}") };
        assert_eq!((by, cores.to_string().as_str()), (CoreId(2), "0-7"));
    }

    #[test]
    fn unknown_kinds_are_named_and_wrong_lines_refused() {
        assert!(
            matches!(parse("5 nsecs HOTCACHE 1 2 3"), Ok(Parsed::Other(kind)) if kind == "HOTCACHE")
        );
        assert!(matches!(parse("# 5 nsecs BA 13 2"), Ok(Parsed::Other(_))));
        assert!(parse("x nsecs RQ 1 2").unwrap_err().contains("`x`"));
        assert!(parse("5 nsecs RQ 1 -2").unwrap_err().contains("`-2`"));
        assert!(parse("   1   1\t 5 nsecs RQ 7 2").unwrap_err().contains("cells of 2 cores"));
        assert!(parse("garbage").unwrap_err().contains("nsecs"));
    }
}
