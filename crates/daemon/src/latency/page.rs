//! Fetches one page over HTTP/1.1 from a server of this host: no redirects, no names, bounded in time and size.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The largest answer that is read, head included.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// The largest head.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The body of the page.
///
/// # Errors
/// A sentence: nobody answers in time, or not with a page.
pub fn fetch(addr: SocketAddr, path: &str, patience: Duration) -> Result<String, String> {
    let answer =
        exchange(addr, path, Instant::now() + patience).map_err(|err| match err.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                format!("{addr} did not answer within {patience:?}")
            }
            _ => format!("{addr}: {err}"),
        })?;
    body(&answer)
}

fn exchange(addr: SocketAddr, path: &str, deadline: Instant) -> io::Result<Vec<u8>> {
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(left),
    };
    let mut stream = TcpStream::connect_timeout(&addr, left()?)?;
    stream.set_write_timeout(Some(left()?))?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {addr}\r\nAccept: text/plain\r\nUser-Agent: quell/{}\r\nConnection: close\r\n\r\n",
        env!("CARGO_PKG_VERSION")
    );
    stream.write_all(request.as_bytes())?;
    let (mut answer, mut bytes) = (Vec::new(), [0; 16 << 10]);
    loop {
        // Anew each time, so that a server that drips does not stretch it.
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(answer),
            Ok(read) => answer.extend_from_slice(&bytes[..read]),
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(io::Error::other(format!("more than {ANSWER_BYTES_MAX} bytes")));
        }
    }
}

/// The body of an answer that is whole.
fn body(answer: &[u8]) -> Result<String, String> {
    let no_http = || "the answer is no HTTP".to_owned();
    let end = answer.windows(4).take(HEAD_BYTES_MAX).position(|four| four == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.ok_or_else(no_http)?);
    let body = &body[4..];
    let head = std::str::from_utf8(head).map_err(|_| no_http())?;
    let mut lines = head.split("\r\n");
    let status = lines.next().filter(|line| line.starts_with("HTTP/1.")).ok_or_else(no_http)?;
    if status.split(' ').nth(1) != Some("200") {
        return Err(format!("the answer is `{}`", status.escape_debug()));
    }
    let header = |name: &str| {
        let mut lines = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    };
    let cut = || "the answer ends before its end".to_owned();
    let body = match (header("transfer-encoding"), header("content-length")) {
        (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => {
            unchunk(body).ok_or_else(cut)?
        }
        (Some(coding), _) => return Err(format!("the answer is coded as {coding}")),
        (None, Some(length)) => {
            let length = length.parse().map_err(|_| no_http())?;
            body.get(..length).ok_or_else(cut)?.to_vec()
        }
        (None, None) => body.to_vec(),
    };
    String::from_utf8(body).map_err(|_| "the page is no text".to_owned())
}

/// Puts chunks together (RFC 9112, section 7.1); `None` if they do not add up.
fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let line = std::str::from_utf8(&rest[..end]).ok()?;
        let length = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        rest = &rest[end + 2..];
        if length == 0 {
            return Some(whole);
        }
        whole.extend_from_slice(rest.get(..length)?);
        rest = rest.get(length..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn read(answer: &str) -> Result<String, String> {
        body(answer.as_bytes())
    }

    #[test]
    fn bodies_end_by_length_by_chunks_or_with_the_connection() {
        let ok = "HTTP/1.1 200 OK\r\n";
        assert_eq!(read(&format!("{ok}\r\nx 1\n")).unwrap(), "x 1\n");
        assert_eq!(read(&format!("{ok}content-length: 2\r\n\r\nx 1\n")).unwrap(), "x ");
        let chunked =
            format!("{ok}Transfer-Encoding: chunked\r\n\r\n2;a=b\r\nx \r\n2\r\n1\n\r\n0\r\n\r\n");
        assert_eq!(read(&chunked).unwrap(), "x 1\n");
    }

    #[test]
    fn answers_that_are_no_page_are_told() {
        let ok = "HTTP/1.1 200 OK\r\n";
        for (answer, wanted) in [
            ("".to_owned(), "no HTTP"),
            ("SSH-2.0-OpenSSH\r\n\r\n".to_owned(), "no HTTP"),
            ("HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\n\r\n".to_owned(), "302 Found"),
            (format!("{ok}Content-Length: 99\r\n\r\nx"), "before its end"),
            (format!("{ok}Content-Length: -1\r\n\r\nx"), "no HTTP"),
            (format!("{ok}Transfer-Encoding: gzip\r\n\r\nx"), "coded as gzip"),
            (
                format!("{ok}Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx"),
                "before its end",
            ),
            (format!("{ok}Transfer-Encoding: chunked\r\n\r\n5\r\nx\r\n"), "before its end"),
        ] {
            let told = read(&answer).unwrap_err();
            assert!(told.contains(wanted), "{answer}: {told}");
        }
        assert!(body(b"HTTP/1.1 200 OK\r\n\r\n\xff").unwrap_err().contains("no text"));
    }

    /// A server that does this with its one connection.
    fn serve(with: impl FnOnce(TcpStream) + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::spawn(move || with(listener.accept().unwrap().0));
        addr
    }

    #[test]
    fn servers_that_drip_or_never_end_are_given_up() {
        let drip = serve(|mut stream| {
            while stream.write_all(b"H").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let told = fetch(drip, "/", Duration::from_millis(300)).unwrap_err();
        assert!(told.contains("did not answer within"), "{told}");
        let flood = serve(|mut stream| while stream.write_all(&[b'x'; 1 << 16]).is_ok() {});
        let told = fetch(flood, "/", Duration::from_secs(60)).unwrap_err();
        assert!(told.contains("more than 8388608 bytes"), "{told}");
        let silent = serve(|mut stream| {
            // Ends when the client gives up.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let told = fetch(silent, "/", Duration::from_millis(200)).unwrap_err();
        assert!(told.contains("did not answer within"), "{told}");
    }

    proptest::proptest! {
        #[test]
        fn no_answer_panics(rest in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            for start in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"] {
                let _ = body(&[start.as_bytes(), &rest].concat());
            }
        }
    }
}
