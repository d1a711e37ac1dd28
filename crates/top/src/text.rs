//! Text from a daemon made fit for a terminal, and numbers made short.
//!
//! Names of tasks and sentences come from files and from programs: they may hold anything.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The longest text that is shown; sentences are far shorter.
const CHARS_MAX: usize = 500;

/// Without what a terminal would obey rather than show: control characters become `?`, and characters
/// without a width (combining marks, changes of direction) are left out.
pub fn clean(text: &str) -> String {
    let shown = text.chars().filter_map(|c| match c.width() {
        None => Some('?'),
        Some(0) => None,
        Some(_) => Some(c),
    });
    shown.take(CHARS_MAX).collect()
}

/// The columns that a text takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// The text in at most `columns`; a longer one ends with `~`.
pub fn fit(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut left = columns.saturating_sub(1);
    let fits = |c: &char| match left.checked_sub(c.width().unwrap_or(0)) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    let mut out: String = text.chars().take_while(fits).collect();
    if columns > 0 {
        out.push('~');
    }
    out
}

/// Lines of at most `columns`, broken at spaces where there are any.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if line.is_empty() {
            *line = fit(word, columns);
        } else if width(line) + 1 + width(word) <= columns {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(fit(word, columns));
        }
    }
    lines
}

/// A length of time given in microseconds, in five or six columns: `850ns`, `12.3us`, `4.0ms`, `2.5s`.
pub fn time(us: f64) -> String {
    match us {
        us if !us.is_finite() || us < 0.0 => "?".to_owned(),
        us if us < 1.0 => format!("{:.0}ns", us * 1e3),
        us if us < 99.95 => format!("{us:.1}us"),
        us if us < 999.5 => format!("{us:.0}us"),
        us if us < 99_950.0 => format!("{:.1}ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0}ms", us / 1e3),
        us if us < 1e8 => format!("{:.1}s", us / 1e6),
        us if us < 3.6e9 => format!("{:.0}min", us / 6e7),
        us => format!("{}h", short(us / 3.6e9)),
    }
}

/// A share in percent.
pub fn percent(share: f64) -> String {
    match share {
        share if !share.is_finite() => "?".to_owned(),
        share if share.abs() < 99.95 => format!("{share:.1}"),
        share => short(share),
    }
}

/// A share in percent, with a decimal only where it says much.
pub fn share(share: f64) -> String {
    if share.abs() < 9.95 { percent(share) } else { short(share) }
}

/// A number without decimals, in powers of ten beyond a million.
pub fn short(number: f64) -> String {
    match number {
        number if !number.is_finite() => "?".to_owned(),
        number if number.abs() < 1e6 => format!("{number:.0}"),
        number => format!("{number:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escapes_and_changes_of_direction_do_not_reach_the_terminal() {
        assert_eq!(clean("a\x1b[31mb\u{202e}c\td\u{9b}e"), "a?[31mbc?d?e");
        assert_eq!(clean("日本"), "日本");
    }

    #[test]
    fn what_does_not_fit_is_marked() {
        assert_eq!(fit("abcdef", 4), "abc~");
        assert_eq!(fit("日本語", 4), "日~");
        assert_eq!(fit("abc", 0), "");
    }

    #[test]
    fn times_are_short() {
        let shown = [0.85, 12.3, 420.0, 4_000.0, 2_500_000.0, 3.6e12].map(time);
        assert_eq!(shown, ["850ns", "12.3us", "420us", "4.0ms", "2.5s", "1000h"]);
    }

    proptest! {
        #[test]
        fn nothing_is_wider_than_asked_for(text in any::<String>(), columns in 0usize..100) {
            let text = clean(&text);
            prop_assert!(width(&fit(&text, columns)) <= columns);
            prop_assert!(wrap(&text, columns).iter().all(|line| width(line) <= columns));
        }

        #[test]
        fn numbers_are_short(number in any::<f64>()) {
            prop_assert!(time(number).len() <= 8 && percent(number).len() <= 8);
            prop_assert!(short(number).len() <= 8);
        }
    }
}
