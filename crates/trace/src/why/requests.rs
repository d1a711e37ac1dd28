//! Requests of a load generator, as text: one a line, `sent,answered` in nanoseconds of CLOCK_MONOTONIC.

use std::io::BufRead;

use quell_model::Nanos;

use crate::import::Lines;
use crate::stream::ReadError;

/// The first line.
const HEADER: &str = "sent,answered";
/// Maximum number of requests in a file: 256 MB of memory.
const REQUESTS_MAX: usize = 16 << 20;

/// Reads requests, by intended send time and reply.
///
/// # Errors
/// With the line and what to do, where one is not `sent,answered` as two numbers of which the second is not less.
pub fn read_requests(input: impl BufRead) -> Result<Vec<(Nanos, Nanos)>, ReadError> {
    let mut lines = Lines::new(input);
    if !lines.advance()? || lines.line() != HEADER {
        let found = lines.line().chars().take(40).collect::<String>();
        return Err(lines.wrong(format!(
            "expected `{HEADER}`, found `{found}`; write that line first, then one request a line, both times in \
             nanoseconds of CLOCK_MONOTONIC"
        )));
    }
    let mut requests = Vec::new();
    while lines.advance()? {
        let request = request(&lines.line()).map_err(|what| lines.wrong(what))?;
        if requests.len() >= REQUESTS_MAX {
            let what = format!("more than {REQUESTS_MAX} requests; split the file");
            return Err(lines.wrong(what));
        }
        requests.push(request);
    }
    Ok(requests)
}

fn request(line: &str) -> Result<(Nanos, Nanos), String> {
    let shown = || line.chars().take(60).collect::<String>();
    let fields = line.split_once(',');
    let numbers = fields.and_then(|(sent, answered)| {
        let number = |text: &str| {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_plain).map(Nanos)
        };
        Some((number(sent)?, number(answered)?))
    });
    match numbers {
        None => Err(format!(
            "`{}` is not a request; write `SENT,ANSWERED`, two numbers of nanoseconds, e.g. `1000,2500`",
            shown()
        )),
        Some((sent, answered)) if answered < sent => Err(format!(
            "`{}`: answered before it was sent; write the send time first, both of CLOCK_MONOTONIC",
            shown()
        )),
        Some(request) => Ok(request),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> String {
        read_requests(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn requests_bad_line_is_refused_with_number_and_remedy() {
        assert!(error("").starts_with("line 0: expected `sent,answered`, found ``; write"));
        assert!(error("1,2\n").starts_with("line 1: expected `sent,answered`, found `1,2`"));
        let bad = |line: &str| error(&format!("sent,answered\n1,2\n{line}\n"));
        for line in
            ["", "1", "1,2,3", "-1,2", "+1,2", "1.5,2", " 1,2", "a,b", "1,99999999999999999999"]
        {
            let told = bad(line);
            assert!(
                told.starts_with("line 3: ") && told.contains("is not a request; write"),
                "{told}"
            );
        }
        assert!(bad("5,4").contains("`5,4`: answered before it was sent; write"));
        assert!(bad(&"9".repeat(100_000)).contains("longer than"));
    }

    proptest! {
        #[test]
        fn requests_written_are_read_back(
            requests in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..50),
        ) {
            let requests: Vec<(Nanos, Nanos)> =
                requests.into_iter().map(|(a, b)| (Nanos(a.min(b)), Nanos(a.max(b)))).collect();
            let mut text = String::from("sent,answered\n");
            for (sent, answered) in &requests {
                text += &format!("{},{}\n", sent.0, answered.0);
            }
            prop_assert_eq!(read_requests(text.as_bytes()).unwrap(), requests);
        }

        #[test]
        fn requests_of_any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let text = [b"sent,answered\n".to_vec(), bytes].concat();
            for (sent, answered) in read_requests(&text[..]).unwrap_or_default() {
                prop_assert!(sent <= answered);
            }
        }
    }
}
