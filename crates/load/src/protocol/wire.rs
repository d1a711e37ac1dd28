//! Small pieces that text protocols share: lines and decimal numbers, both bounded.

use super::Malformed;

/// The text before the first CR LF, `None` while it has not come within `bytes_max`.
pub(super) fn first_line(input: &[u8], bytes_max: usize) -> Result<Option<&[u8]>, Malformed> {
    let window = &input[..input.len().min(bytes_max)];
    match window.iter().position(|&byte| byte == b'\n') {
        Some(end) if end > 0 && input[end - 1] == b'\r' => Ok(Some(&input[..end - 1])),
        Some(_) => Err(Malformed("line without carriage return")),
        None if window.len() == bytes_max => Err(Malformed("line too long")),
        None => Ok(None),
    }
}

/// A number of decimal digits alone, not above `max`.
pub(super) fn decimal(digits: &[u8], max: usize) -> Option<usize> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (number <= max).then_some(number)
}

/// Appends a number without allocating.
pub(super) fn push_decimal(mut number: usize, out: &mut Vec<u8>) {
    let start = out.len();
    loop {
        out.push(b'0' + (number % 10) as u8);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out[start..].reverse();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_digits_are_a_number() {
        assert_eq!(decimal(b"042", 42), Some(42));
        for word in [&b""[..], b"+4", b"-4", b" 4", b"43", b"99999999999999999999999"] {
            assert_eq!(decimal(word, 42), None, "{word:?}");
        }
    }

    proptest! {
        #[test]
        fn numbers_survive_the_wire(number: usize) {
            let mut out = Vec::new();
            push_decimal(number, &mut out);
            prop_assert_eq!(decimal(&out, usize::MAX), Some(number));
        }
    }
}
