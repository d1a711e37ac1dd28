//! As much of HTTP/1.1 as a scrape needs: one GET a connection, heads only, everything bounded.

use std::io::{self, Read};

/// The longest request line with headers that is read.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Headers at most.
const HEADERS_MAX: usize = 64;

/// A GET.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// The path, without the query.
    pub path: String,
    /// The values of all `Accept` headers.
    pub accept: String,
}

/// What the client gets.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Answer {
    /// What was asked for.
    pub fn ok(content_type: &'static str, body: String) -> Answer {
        Answer { status: "200 OK", content_type, body }
    }

    /// The daemon cannot tell now.
    pub fn unavailable(why: &str) -> Answer {
        Answer::text("503 Service Unavailable", why)
    }

    /// There is nothing at this path.
    pub fn not_found() -> Answer {
        Answer::text("404 Not Found", "there are /metrics, /schema and /healthz")
    }

    fn text(status: &'static str, line: &str) -> Answer {
        Answer { status, content_type: "text/plain; charset=utf-8", body: format!("{line}\n") }
    }

    /// Whether the client got what it asked for.
    pub fn is_ok(&self) -> bool {
        self.status.starts_with("200")
    }

    /// On the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Answer { status, content_type, body } = self;
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        )
        .into_bytes()
    }
}

/// Reads a request, or what to answer to one that is none.
///
/// # Errors
/// When the client is gone or too slow.
pub fn read(from: &mut impl Read) -> io::Result<Result<Request, Answer>> {
    let mut head = [0; HEAD_BYTES_MAX];
    let mut filled = 0;
    loop {
        match from.read(&mut head[filled..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => filled += more,
        }
        match parse(&head[..filled]) {
            Some(parsed) => return Ok(parsed),
            None if filled < head.len() => {}
            None => {
                return Ok(Err(Answer::text("431 Request Header Fields Too Large", "too long")));
            }
        }
    }
}

/// `None`: the head goes on.
fn parse(head: &[u8]) -> Option<Result<Request, Answer>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => {
            let many = Answer::text("431 Request Header Fields Too Large", "too many headers");
            return Some(Err(many));
        }
        Err(err) => return Some(Err(Answer::text("400 Bad Request", &err.to_string()))),
    }
    if request.method != Some("GET") {
        return Some(Err(Answer::text("405 Method Not Allowed", "only GET is served")));
    }
    let target = request.path.unwrap_or_default();
    let path = target.split_once('?').map_or(target, |(path, _)| path).to_owned();
    let accepts = request.headers.iter().filter(|one| one.name.eq_ignore_ascii_case("accept"));
    let accepts: Vec<_> = accepts.map(|one| String::from_utf8_lossy(one.value)).collect();
    Some(Ok(Request { path, accept: accepts.join(",") }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_all(mut bytes: &[u8]) -> Option<Result<Request, Answer>> {
        read(&mut bytes).ok()
    }

    fn status(bytes: &[u8]) -> &'static str {
        read_all(bytes).unwrap().unwrap_err().status
    }

    #[test]
    fn a_get_has_its_path_and_what_it_accepts() {
        let request =
            b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\naccept: text/plain\r\nAccept: */*\r\n\r\n";
        let wanted = Request { path: "/metrics".into(), accept: "text/plain,*/*".into() };
        assert_eq!(read_all(request), Some(Ok(wanted)));
    }

    #[test]
    fn what_is_no_get_is_refused() {
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\n\r\n"), "405 Method Not Allowed");
        assert_eq!(status(b"\x16\x03\x01\x02\x00\x01\x00\x01"), "400 Bad Request");
        let long = [b"GET /", &[b'a'; HEAD_BYTES_MAX][..]].concat();
        assert!(status(&long).starts_with("431"));
        let headers = "a: b\r\n".repeat(HEADERS_MAX + 1);
        assert!(status(format!("GET / HTTP/1.1\r\n{headers}\r\n").as_bytes()).starts_with("431"));
        assert_eq!(read_all(b"GET /metrics HT"), None, "the client is gone");
    }

    /// Gives its bytes in pieces.
    struct Drip<'a>(&'a [u8], usize);

    impl Read for Drip<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let piece = self.1.min(self.0.len()).min(into.len());
            into[..piece].copy_from_slice(&self.0[..piece]);
            self.0 = &self.0[piece..];
            Ok(piece)
        }
    }

    proptest! {
        #[test]
        fn bytes_of_any_kind_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..10_000)) {
            let _ = read_all(&bytes);
        }

        #[test]
        fn nearly_right_requests_in_pieces_are_read_as_in_one(
            request in "(GET|HEAD|get) /[a-z?%]{0,12} HTTP/1\\.[019]\r\n(Accept: [ -~]{0,20}\r\n){0,3}\r?\n",
            piece in 1..20usize,
        ) {
            let whole = read_all(request.as_bytes());
            prop_assert_eq!(read(&mut Drip(request.as_bytes(), piece)).ok(), whole);
        }
    }
}
