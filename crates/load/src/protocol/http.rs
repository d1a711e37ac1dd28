//! HTTP/1.1 (RFC 9112): pipelined GETs over connections that are kept alive.
//!
//! A reply ends by its `Content-Length`, by its last chunk, or with its head where the status forbids
//! content. One that would end with the connection is refused: it leaves no border for the next.

use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::wire::{decimal, first_line};
use super::{Malformed, Parsed, Protocol, Status, Token, WorkloadRng};

/// Longest head accepted, in bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Most header fields accepted.
const FIELDS_MAX: usize = 100;
/// Longest content accepted, in bytes, framing of chunks included.
const BODY_BYTES_MAX: usize = 8 << 20;
/// Longest line of a chunk's size with its extensions, or of a trailer field.
const CHUNK_LINE_BYTES_MAX: usize = 4_096;
/// Most paths of a workload, and the longest one in bytes.
const PATHS_MAX: usize = 10_000;
const PATH_BYTES_MAX: usize = 8_000;
/// Longest name of a host (RFC 1035) with a port.
const HOST_BYTES_MAX: usize = 261;

const MALFORMED_HEAD: Malformed = Malformed("not the head of an HTTP/1 reply");

/// What is asked for. Needs no preload: the server has its pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSpec {
    /// The `Host` field.
    pub host: String,
    /// Paths, each as likely as any other; a path that stands here twice is asked for twice as often.
    pub paths: Vec<String>,
}

/// Encoder and parser.
///
/// Statuses of the classes 2xx and 3xx are good, 404 and 410 are misses, all others errors. Interim
/// replies (1xx) belong to the reply that they announce.
pub struct Http {
    /// Whole requests.
    requests: Vec<Vec<u8>>,
}

impl Http {
    /// Checks the workload.
    ///
    /// # Errors
    /// Says what cannot be sent.
    pub fn new(spec: &HttpSpec) -> Result<Http, String> {
        let visible =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !visible(&spec.host) || spec.host.len() > HOST_BYTES_MAX {
            return Err(format!("`{}` is no host name", spec.host.escape_debug()));
        }
        if !(1..=PATHS_MAX).contains(&spec.paths.len()) {
            return Err(format!("{} paths; use 1 to {PATHS_MAX}", spec.paths.len()));
        }
        let request = |path: &String| {
            if !path.starts_with('/') || !visible(path) || path.len() > PATH_BYTES_MAX {
                return Err(format!(
                    "`{}` is no path: it has to start with `/`, hold visible ASCII characters only \
                     (encode others as %XX), and at most {PATH_BYTES_MAX} of them",
                    path.escape_debug()
                ));
            }
            let host = &spec.host;
            Ok(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: quell-load\r\n\r\n"))
        };
        let requests = spec.paths.iter().map(|path| request(path).map(String::into_bytes));
        Ok(Http { requests: requests.collect::<Result<_, String>>()? })
    }
}

impl Protocol for Http {
    fn encode(&mut self, rng: &mut WorkloadRng, out: &mut Vec<u8>) -> Token {
        let which = rng.random_range(0..self.requests.len());
        out.extend_from_slice(&self.requests[which]);
        Token(which as u64)
    }

    /// Servers end connections after a number of requests or a time, and a GET may be asked again (RFC
    /// 9110, section 9.2.2).
    fn encode_again(&self, token: Token, out: &mut Vec<u8>) -> bool {
        let request = self.requests.get(token.0 as usize);
        request.map(|request| out.extend_from_slice(request)).is_some()
    }

    fn encode_preload(&mut self, _index: u64, _out: &mut Vec<u8>) -> Option<Token> {
        None
    }

    fn parse(&self, input: &[u8], _token: Token) -> Result<Parsed, Malformed> {
        let mut at = 0;
        loop {
            let Some(head) = Head::parse(&input[at..])? else { return Ok(Parsed::Incomplete) };
            at += head.len;
            if head.code < 200 {
                if at > HEAD_BYTES_MAX {
                    return Err(Malformed("too many interim replies"));
                }
                continue;
            }
            let body = match head.body {
                Body::Empty => Some(0),
                Body::Length(bytes) => (input.len() - at >= bytes).then_some(bytes),
                Body::Chunked => chunked_len(&input[at..])?,
            };
            return Ok(match body {
                Some(bytes) => Parsed::Reply { len: at + bytes, status: status(head.code) },
                None => Parsed::Incomplete,
            });
        }
    }

    fn reply_bytes_max(&self) -> usize {
        // The last interim reply may begin just below the bound.
        2 * HEAD_BYTES_MAX + BODY_BYTES_MAX
    }
}

fn status(code: u16) -> Status {
    match code {
        200..400 => Status::Ok,
        404 | 410 => Status::Miss,
        _ => Status::Error,
    }
}

/// How the content of a reply ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Empty,
    Length(usize),
    Chunked,
}

/// The head of a reply.
struct Head {
    /// Its length in bytes, empty line included.
    len: usize,
    code: u16,
    body: Body,
}

impl Head {
    /// The head at the front of `input`, `None` while it has not wholly come.
    fn parse(input: &[u8]) -> Result<Option<Head>, Malformed> {
        let window = &input[..input.len().min(HEAD_BYTES_MAX)];
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut reply = httparse::Response::new(&mut fields);
        let parsed = reply.parse(window).map_err(|_| MALFORMED_HEAD)?;
        let httparse::Status::Complete(len) = parsed else {
            return match window.len() {
                HEAD_BYTES_MAX => Err(Malformed("head too long")),
                _ => Ok(None),
            };
        };
        let code = reply.code.filter(|code| (100..600).contains(code)).ok_or(MALFORMED_HEAD)?;
        let body = match code {
            // RFC 9112, section 6.3.
            100..200 | 204 | 304 => Body::Empty,
            _ => body(reply.headers)?,
        };
        Ok(Some(Head { len, code, body }))
    }
}

/// How the header fields say that the content ends. A reply that says it in two ways is refused, as RFC
/// 9112, section 6.3, allows.
fn body(fields: &[httparse::Header]) -> Result<Body, Malformed> {
    let mut body = None;
    for field in fields {
        let found = if field.name.eq_ignore_ascii_case("content-length") {
            let bytes = decimal(field.value, BODY_BYTES_MAX);
            Body::Length(bytes.ok_or(Malformed("content without a valid length"))?)
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            if !field.value.eq_ignore_ascii_case(b"chunked") {
                return Err(Malformed("transfer encoding other than chunked"));
            }
            Body::Chunked
        } else {
            continue;
        };
        if body.is_some_and(|known| known != found) {
            return Err(Malformed("content of two lengths"));
        }
        body = Some(found);
    }
    body.ok_or(Malformed("content that ends with the connection"))
}

/// Length of the chunks at the front of `input` with their framing and trailer, `None` while they have
/// not wholly come.
fn chunked_len(input: &[u8]) -> Result<Option<usize>, Malformed> {
    let mut at = 0;
    loop {
        let Some(line) = first_line(&input[at..], CHUNK_LINE_BYTES_MAX)? else { return Ok(None) };
        at += line.len() + 2;
        let bytes = chunk_bytes(line)?;
        if bytes == 0 {
            break;
        }
        if at + bytes > BODY_BYTES_MAX {
            return Err(Malformed("content too long"));
        }
        let Some(end) = input.get(at + bytes..at + bytes + 2) else { return Ok(None) };
        if end != b"\r\n" {
            return Err(Malformed("chunk does not end where its size says"));
        }
        at += bytes + 2;
    }
    for _ in 0..=FIELDS_MAX {
        let Some(line) = first_line(&input[at..], CHUNK_LINE_BYTES_MAX)? else { return Ok(None) };
        at += line.len() + 2;
        if line.is_empty() {
            return Ok(Some(at));
        }
    }
    Err(Malformed("trailer too long"))
}

/// `<hex digits>[;extensions]`
fn chunk_bytes(line: &[u8]) -> Result<usize, Malformed> {
    const INVALID: Malformed = Malformed("chunk without a valid size");
    let digits = line.split(|byte| b"; \t".contains(byte)).next().unwrap_or_default();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(INVALID);
    }
    let digits = std::str::from_utf8(digits).map_err(|_| INVALID)?;
    usize::from_str_radix(digits, 16).ok().filter(|&bytes| bytes <= BODY_BYTES_MAX).ok_or(INVALID)
}

#[cfg(test)]
mod tests {
    use super::super::testing::replies_split_anywhere;
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;

    const ANY: Token = Token(0);

    fn spec(paths: &[&str]) -> HttpSpec {
        let paths = paths.iter().map(|&path| path.to_owned()).collect();
        HttpSpec { host: "example.org:80".into(), paths }
    }

    fn http() -> Http {
        Http::new(&spec(&["/"])).unwrap()
    }

    const REPLIES: [(&[u8], Token, Status); 10] = [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na\r\n\r\n", ANY, Status::Ok),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", ANY, Status::Ok),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", ANY, Status::Ok),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=\"y\"\r\n0\r\n\r\n\r\n0a \r\n0123456789\r\n0\r\n\r\n",
            ANY,
            Status::Ok,
        ),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n0\r\nDigest: x\r\nAge: 1\r\n\r\n",
            ANY,
            Status::Ok,
        ),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 900\r\n\r\n", ANY, Status::Ok),
        (b"HTTP/1.1 204 No Content\r\n\r\n", ANY, Status::Ok),
        (
            b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
            ANY,
            Status::Miss,
        ),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", ANY, Status::Error),
        (b"HTTP/1.1 429\r\nContent-Length: 0\r\n\r\n", ANY, Status::Error),
    ];

    #[test]
    fn replies_are_found_wherever_the_stream_is_split() {
        replies_split_anywhere(&http(), &REPLIES);
    }

    #[test]
    fn a_reply_that_cannot_become_valid_is_refused() {
        let refused = |input: &[u8]| http().parse(input, ANY).is_err();
        assert!(refused(b"STORED\r\n"));
        assert!(refused(b"HTTP/1.1 200 OK\r\n\r\n"), "ends with the connection");
        assert!(refused(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"));
        assert!(refused(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"));
        assert!(refused(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"));
        let smuggled =
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert!(refused(smuggled));
        let chunked = |chunks: &[u8]| {
            refused(&[b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunks].concat())
        };
        assert!(chunked(b"2\r\nabc\r\n"));
        assert!(chunked(b"\r\n") && chunked(b"+2\r\nab\r\n") && chunked(b"fffffffffffffffff\r\n"));
        assert!(chunked(&[&b"0\r\n"[..], &b"a: b\r\n".repeat(200)].concat()), "endless trailer");
        assert!(!chunked(b"7fff00\r\n") && chunked(b"800001\r\n"));
        let endless = [&b"HTTP/1.1 200 OK\r\n"[..], &b"x: y\r\n".repeat(6_000)].concat();
        assert!(refused(&endless));
        let mut long = b"HTTP/1.1 200 OK\r\nx: ".to_vec();
        long.resize(HEAD_BYTES_MAX, b'y');
        assert!(refused(&long));
        assert!(refused(&b"HTTP/1.1 100 Continue\r\n\r\n".repeat(2_000)), "endless announcements");
    }

    #[test]
    fn every_path_is_asked_for_with_the_host() {
        let mut protocol = Http::new(&spec(&["/a", "/b?c=d"])).unwrap();
        let mut rng = WorkloadRng::seed_from_u64(1);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            let mut out = Vec::new();
            protocol.encode(&mut rng, &mut out);
            seen.insert(String::from_utf8(out).unwrap());
        }
        let request = |path| {
            format!("GET {path} HTTP/1.1\r\nHost: example.org:80\r\nUser-Agent: quell-load\r\n\r\n")
        };
        assert_eq!(seen, ["/a", "/b?c=d"].map(request).into());
    }

    #[test]
    fn a_workload_that_makes_no_sense_is_refused() {
        let refused = |paths: &[&str]| Http::new(&spec(paths)).is_err();
        assert!(refused(&[]) && refused(&["a"]) && refused(&["/ö"]) && refused(&["/a b"]));
        assert!(refused(&["/ HTTP/1.1\r\nX: y"]), "a second line");
        let host = |host: &str| Http::new(&HttpSpec { host: host.into(), ..spec(&["/"]) }).is_err();
        assert!(host("") && host("a\r\nb") && host(&"a".repeat(300)));
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_never_yields_more_than_it_holds(
            code in 0u16..1_000,
            fields in "(Content-Length: ?[0-9]{0,9}\r\n|Transfer-Encoding: chunked\r\n|[ -~]{0,20}\r\n){0,4}",
            rest in "([0-9a-f]{1,3}\r\n|[ -~]{0,9}|\r\n){0,30}",
        ) {
            let input = format!("HTTP/1.1 {code:03} x\r\n{fields}\r\n{rest}");
            if let Ok(Parsed::Reply { len, .. }) = http().parse(input.as_bytes(), ANY) {
                prop_assert!(len >= 1 && len <= input.len());
            }
        }

        #[test]
        fn damaged_replies_never_panic(which in 0..REPLIES.len(), at in 0usize..200, byte: u8) {
            let mut input = REPLIES[which].0.to_vec();
            let at = at % input.len();
            input[at] = byte;
            if let Ok(Parsed::Reply { len, .. }) = http().parse(&input, ANY) {
                prop_assert!(len <= input.len());
            }
        }
    }
}
